"""What is compared: settings, each with every seed, on the same data and with the same budget."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_relpos.comparing.classifier import load_tokenizer
from hf_relpos.comparing.environment import versions
from hf_relpos.comparing.examples import Example, TextData
from hf_relpos.comparing.settings import Setting
from hf_relpos.comparing.training import Budget, EncodedTexts


@dataclass(frozen=True)
class Job:
    """One fine-tuning: a setting with a seed."""

    setting: Setting
    seed: int

    def __str__(self) -> str:
        return f"{self.setting.name}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """All that the results of a comparison depend on.

    Attributes:
        model: folder, or id on the Hub, of the pretrained model.
        name: what the model is called in tables.
        task: what is learned.
        data: the labelled texts.
        settings: what is compared.
        seeds: each setting is fine-tuned once with each.
        budget: how.
        conversion_steps: of :func:`hf_relpos.convert`; None where no setting asks for it.
        memory: whether each run has a process of its own, where the memory of its steps is measured.
    """

    model: str
    name: str
    task: str
    data: TextData
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    budget: Budget
    conversion_steps: tuple[int, int] | None
    memory: bool

    @property
    def jobs(self) -> list[Job]:
        """All runs in their order: every setting with the first seed, then with the next."""
        return [Job(setting, seed) for seed in self.seeds for setting in self.settings]

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """That of the model."""
        return load_tokenizer(self.model, self.budget.max_length, any(one.keeps_native for one in self.settings))

    @cached_property
    def train(self) -> EncodedTexts:
        """What is learned from."""
        return EncodedTexts(self.data.train, self.tokenizer, self.budget.max_length)

    @cached_property
    def evaluation(self) -> EncodedTexts:
        """What is measured on."""
        return EncodedTexts(self.data.eval, self.tokenizer, self.budget.max_length)

    @cached_property
    def digest(self) -> str | None:
        """Of the model's config and weights, where it is in a folder; None for one on the Hub."""
        folder = Path(self.model)
        if not folder.is_dir():
            return None
        whole = hashlib.sha256()
        for path in sorted(path for kind in ("config.json", "*.safetensors", "*.bin") for path in folder.glob(kind)):
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
        return whole.hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON, texts included."""
        return {**asdict(self), "settings": [setting.to_dict() for setting in self.settings]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The plan that :meth:`to_dict` wrote."""
        data = values["data"]
        parts = {part: [Example(**one) for one in data[part]] for part in ("train", "eval")}
        return cls(
            **{
                **values,
                "data": TextData(**{**data, **parts}),
                "settings": tuple(map(Setting.from_dict, values["settings"])),
                "seeds": tuple(values["seeds"]),
                "budget": Budget(**values["budget"]),
                "conversion_steps": values["conversion_steps"] and tuple(values["conversion_steps"]),
            }
        )

    def record(self) -> dict[str, Any]:
        """What tells one plan from another, as JSON; of texts and of a model in a folder there is a digest."""
        data = self.data
        texts = json.dumps([[(one.text, one.label) for one in part] for part in (data.train, data.eval)])
        return {
            "model": self.name,
            "weights": self.digest,
            "task": self.task,
            "data": {
                "name": data.name,
                "labels": data.labels,
                "train": len(data.train),
                "eval": len(data.eval),
                "sha256": hashlib.sha256(texts.encode()).hexdigest(),
            },
            "settings": [setting.to_dict() for setting in self.settings],
            "seeds": list(self.seeds),
            "budget": asdict(self.budget),
            "conversion_steps": self.conversion_steps and list(self.conversion_steps),
            "memory": self.memory,
            "versions": versions(),
        }
