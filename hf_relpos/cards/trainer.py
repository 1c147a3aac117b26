"""The Trainer's model card for a patched model: ours, with what the Trainer knows.

`Trainer.create_model_card`, which `push_to_hub=True` calls as well, replaces the folder's `README.md` by a draft that
knows nothing of the patch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_relpos.cards import ownership
from hf_relpos.compat import transformers as compat
from hf_relpos.modeling.state import is_patched_model


def write_from_trainer() -> None:
    """From now on, write our card where the Trainer would write its own for a patched model.

    `create_model_card`, and `push_to_hub` which calls it, then take two arguments more: `metrics`, measured numbers in
    place of those that the Trainer logged last, and `training`, rows about the run to stand before the Trainer's own.
    """
    compat.replace_trainer_card(is_patched_model, _write, more=("metrics", "training"))


def _write(trainer: Any, model: Any, given: dict[str, Any]) -> None:
    """Write the card, or add the Trainer's metadata to the one that somebody wrote."""
    from huggingface_hub import ModelCard, ModelCardData
    from transformers.modelcard import TrainingSummary

    from hf_relpos.cards.card import base_of, is_standalone, model_card

    metrics, training = given.pop("metrics", None), given.pop("training", {})
    directory = Path(trainer.args.output_dir)
    path = directory / "README.md"
    summary = TrainingSummary.from_trainer(trainer, **given)
    known = _metadata(summary, given.get("finetuned_from") or base_of(model, ""))
    if path.exists() and not ownership.is_untouched(path.read_text("utf-8"), ownership.ON_SAVING, ownership.BY_TRAINER):
        card = ModelCard.load(path)
        card.data = ModelCardData(**ownership.completed(card.data.to_dict(), known))
        card.save(path)
        return
    card = model_card(
        model,
        getattr(trainer, "hub_model_id", None) or directory.resolve().name,
        base_model=known.get("base_model"),
        metrics=metrics
        or {name.lower().replace(" ", "_"): value for name, value in (summary.eval_results or {}).items()},
        dataset=", ".join(_listed(summary.dataset)) or None,
        training={**training, **(summary.hyperparameters or {})},
        progress=summary.eval_lines or (),
        title=summary.model_name,
        license=summary.license,
        language=summary.language,
        standalone=is_standalone(directory),
    )
    card.data = ModelCardData(**ownership.completed(card.data.to_dict(), known))
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(ownership.mark(str(card), ownership.BY_TRAINER), encoding="utf-8")


def _metadata(summary: Any, base_model: str | None) -> dict[str, Any]:
    """The Trainer's metadata, less what the Hub refuses: a folder as base model, results without a task or data set."""
    known = {**summary.create_metadata(), "base_model": base_model}
    if not any(entry["results"] for entry in known.get("model-index", ())):
        known.pop("model-index", None)
    return {key: value for key, value in known.items() if value is not None}


def _listed(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())
