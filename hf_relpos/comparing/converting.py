"""The model that a setting `converted` starts from: made once, for all seeds."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import cast

from transformers import AutoModel

from hf_relpos.comparing.classifier import quietly
from hf_relpos.comparing.plan import Plan
from hf_relpos.comparing.settings import Setting
from hf_relpos.config import RelPosConfig
from hf_relpos.conversion import convert

SEED = 0


def converted_model(plan: Plan, setting: Setting, folder: Path) -> Path:
    """A folder with the plan's model, converted on the texts to learn from, without their labels.

    Args:
        plan: what is compared.
        setting: the choices.
        folder: where the model is, or is to be; it only appears when it is complete.
    """
    if folder.is_dir():
        return folder
    relpos, steps = cast(RelPosConfig, setting.relpos), cast(tuple[int, int], plan.conversion_steps)
    longest = plan.budget.max_length
    shortest = max(longest // 4, plan.tokenizer.num_special_tokens_to_add() + 2)
    tokenizer = copy.deepcopy(plan.tokenizer)
    with quietly():
        pretrained = AutoModel.from_pretrained(plan.model, dtype="float32")
    model = convert(
        pretrained,
        relpos,
        [example.text for example in plan.data.train],
        tokenizer,
        lengths=sorted({shortest, max(shortest, longest)}),
        steps=steps,
        seed=SEED,
        progress=False,
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as beside:
        made = Path(beside) / folder.name
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        made.rename(folder)
    return folder
