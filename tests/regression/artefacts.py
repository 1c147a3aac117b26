"""What earlier releases have written, read again: which artefacts there are, how each is loaded, what it computes.

A folder per release holds `index.json`, and for each artefact `<name>/` as it was saved and `<name>.safetensors` with
inputs, outputs and, for a Trainer's checkpoint, the parameters in which the training ended.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from peft import PeftModel
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from hf_relpos import RelPosTrainerMixin

HERE = Path(__file__).parent
INDEX = "index.json"
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Artefact:
    """One thing that a release has written.

    Attributes:
        folder: the release's folder.
        name: of the artefact, in that folder.
        kind: `plain`, `standalone`, `adapter`, `checkpoint` or `pickle`.
        auto_class: loads it (of an adapter: its base), from Transformers.
        model_class: what it is then (of an adapter: its base), a class of this package.
        relpos: the choices of its patch, as the config has them.
        bitwise: digest of the float32 outputs on the machine that wrote them.
        training: of a checkpoint, what its `TrainingArguments` were made of.
    """

    folder: Path
    name: str
    kind: str
    auto_class: str
    model_class: str
    relpos: dict[str, Any]
    bitwise: str = ""
    training: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.folder.name}/{self.name}"

    @property
    def path(self) -> Path:
        """What was saved."""
        return self.folder / self.name

    @property
    def model_path(self) -> Path:
        """What `from_pretrained` of a model takes."""
        return self.path / "base" if self.kind == "adapter" else self.path

    @property
    def tensors_path(self) -> Path:
        """The tensors beside it."""
        return self.folder / f"{self.name}.safetensors"


def releases() -> list[Path]:
    """The folders of the releases."""
    return sorted(index.parent for index in HERE.glob(f"*/{INDEX}"))


def written_with(folder: Path) -> dict[str, str]:
    """The versions of the packages that wrote a release's folder."""
    return json.loads((folder / INDEX).read_text(encoding="utf-8"))["versions"]


def artefacts() -> list[Artefact]:
    """All of all releases."""
    return [
        Artefact(folder=folder, name=name, **entry)
        for folder in releases()
        for name, entry in json.loads((folder / INDEX).read_text(encoding="utf-8"))["artefacts"].items()
    ]


def load(artefact: Artefact) -> nn.Module:
    """The model, in eval mode, float32."""
    if artefact.kind == "pickle":
        model = torch.load(artefact.path / "model.pt", weights_only=False)
    else:
        model = getattr(transformers, artefact.auto_class).from_pretrained(artefact.model_path)
    if artefact.kind == "adapter":
        model = PeftModel.from_pretrained(model, artefact.path / "adapter")
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()  # what is mapped from a file may lie so that products round otherwise
    return model.eval()


def group(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Of all tensors `group/name` those of one group, by name."""
    return {key.partition("/")[2]: tensor for key, tensor in tensors.items() if key.startswith(f"{name}/")}


def batches_of(artefact: Artefact) -> dict[str, dict[str, Tensor]]:
    """The inputs it was given: a padded batch, and a long one."""
    tensors = safetensors.torch.load_file(artefact.tensors_path)
    return {name: group(tensors, name) for name in ("padded", "long")}


def expected_of(artefact: Artefact, dtype: str) -> dict[str, Tensor]:
    """The logits it had for each of the inputs."""
    return group(safetensors.torch.load_file(artefact.tensors_path), dtype)


def logits(model: nn.Module, batches: dict[str, dict[str, Tensor]], dtype: str) -> dict[str, Tensor]:
    """What a model computes in a precision, in which it is left."""
    model.to(DTYPES[dtype])
    with torch.no_grad():
        return {name: model(**batch).logits for name, batch in batches.items()}


def digest(outputs: dict[str, Tensor]) -> str:
    """A fingerprint of every bit."""
    found = hashlib.sha256()
    for name in sorted(outputs):
        found.update(outputs[name].contiguous().numpy().tobytes())
    return found.hexdigest()


class RelPosTrainer(RelPosTrainerMixin, Trainer):
    """The Trainer that wrote the checkpoints."""


def trainer(model: nn.Module, rows: Tensor, output_dir: Path, arguments: dict[str, Any]) -> RelPosTrainer:
    """A Trainer for a language model.

    Args:
        model: to be trained.
        rows: token ids `[rows, length]`. All are in every batch, so that their order, which is not the same in every
            release of Transformers, does not matter.
        output_dir: for its checkpoints.
        arguments: of its `TrainingArguments`.
    """
    data = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in rows]
    settings = TrainingArguments(str(output_dir), per_device_train_batch_size=len(rows), **arguments)
    return RelPosTrainer(model, settings, train_dataset=data)
