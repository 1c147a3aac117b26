"""Model cards: `model_cards/TEMPLATE.md`, filled from a patched model's config and from measured numbers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_relpos.errors import RelPosError
from hf_relpos.installing import HOW_TO_INSTALL, WITHOUT_INSTALLING

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCard, ModelCardData
    from transformers import PreTrainedModel

    from hf_relpos.cards.converted import Conversion

TAGS = ["hf_relpos", "relative-position"]

# Which Auto class loads a model, of those that know its class the first -> the Hub's pipeline tag if there is one.
_HEADS: dict[str, str | None] = {
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
    "AutoModelForMultipleChoice": "multiple-choice",
    "AutoModelForNextSentencePrediction": None,
    # The Hub no longer has a tag for text to text in general, and the task in particular is not known.
    "AutoModelForSeq2SeqLM": None,
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForPreTraining": None,
    "AutoModel": "feature-extraction",
    "AutoModelForTextEncoding": "feature-extraction",
}

# What a measured number is called: key in `metrics` -> (name for readers, the Hub's id, its arguments).
_METRICS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "accuracy": ("accuracy", "accuracy", None),
    "f1": ("F1", "f1", None),
    "f1_macro": ("macro-F1", "f1", {"average": "macro"}),
    "loss": ("loss", "loss", None),
    "perplexity": ("perplexity", "perplexity", None),
}


class ModelCardError(RelPosError, ValueError):
    """A model card cannot be written from what was given."""


def write_model_card(
    model: PreTrainedModel,
    directory: str | os.PathLike[str],
    *,
    base_model: str | None = None,
    metrics: Mapping[str, float] | None = None,
    baseline: Mapping[str, float] | None = None,
    dataset: str | None = None,
    training: Mapping[str, Any] | None = None,
    progress: Sequence[Mapping[str, Any]] = (),
    conversion: Conversion | None = None,
    title: str | None = None,
    license: str | None = None,
    language: str | list[str] | None = None,
    trained: bool | None = None,
    standalone: bool | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the card of a patched model as `README.md` into the folder the model is saved in.

    Args:
        model: A patched model.
        directory: Folder of the saved model; made if it does not exist.
        base_model: Hub id of the model that was patched. Without it, the one the model was loaded from if
            that was a Hub id; a model loaded from a folder gets a card that names its family only.
        metrics: Measured numbers, for example `{"accuracy": 0.93, "loss": 0.2}`.
        baseline: The same numbers of the same model without the patch.
        dataset: Name of the data the numbers were measured on; without it the metadata leaves them out.
        training: How the model was trained, as rows of a table.
        progress: Numbers measured while training, a row each.
        conversion: How the model was converted, if it was: what `hf_relpos.conversion.card.for_card` makes of the
            report. Of one that was trained since, it would not be true.
        title: Name of the model; the folder's name by default.
        license: Licence id of the Hub, for example `"apache-2.0"`.
        language: ISO 639 code or codes, for example `"en"`.
        trained: Whether the model was trained after it was patched. None looks: numbers, a training table, or a
            table or gate that has left its start value say that it was.
        standalone: Whether the folder also loads without this package (`save_standalone`). None looks.
        overwrite: Whether a `README.md` that is already there may be replaced.

    Returns:
        The path of the card.

    Raises:
        PatchStateError: If the model is not patched.
        ModelCardError: If a value is not valid for the Hub.
        FileExistsError: If there is a `README.md` and `overwrite` is false.
    """
    directory = Path(directory)
    path = directory / "README.md"
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already. Pass overwrite=True to replace it, or move it away.")
    card = model_card(
        model,
        directory.resolve().name,
        base_model=base_model,
        metrics=metrics,
        baseline=baseline,
        dataset=dataset,
        training=training,
        progress=progress,
        conversion=conversion,
        title=title,
        license=license,
        language=language,
        trained=trained,
        standalone=is_standalone(directory) if standalone is None else standalone,
    )
    directory.mkdir(parents=True, exist_ok=True)
    card.save(path)
    return path


def model_card(
    model: PreTrainedModel,
    location: str,
    *,
    base_model: str | None = None,
    metrics: Mapping[str, float] | None = None,
    baseline: Mapping[str, float] | None = None,
    dataset: str | None = None,
    training: Mapping[str, Any] | None = None,
    progress: Sequence[Mapping[str, Any]] = (),
    conversion: Conversion | None = None,
    title: str | None = None,
    license: str | None = None,
    language: str | list[str] | None = None,
    trained: bool | None = None,
    standalone: bool = False,
) -> ModelCard:
    """The card that :func:`write_model_card` writes; its arguments, and one more.

    Args:
        model: A patched model.
        location: What the loading code names: a folder, or an id on the Hub. Its last part is the default title.
        base_model: As there.
        metrics: As there.
        baseline: As there.
        dataset: As there.
        training: As there.
        progress: As there.
        conversion: As there.
        title: As there.
        license: As there.
        language: As there.
        trained: As there.
        standalone: As there.

    Raises:
        PatchStateError: If the model is not patched.
        ModelCardError: If a value is not valid for the Hub.
    """
    from huggingface_hub import ModelCard

    from hf_relpos.cards import facts
    from hf_relpos.modeling.report import patch_report

    report = patch_report(model)
    relpos = report.config.to_dict()
    title = title or location.rpartition("/")[2]
    training = {**(training or {}), **(conversion.training if conversion else {})}
    if metrics or training:
        trained = True
    elif trained is None:
        trained = facts.was_trained(model)
    if base_model is None:
        base_model = base_of(model, location)
    elif not is_hub_id(base_model):
        raise ModelCardError(
            f"base_model is {base_model!r}, but must be the id of a model on the Hub, like "
            '"google-bert/bert-base-uncased". Leave it out for a model that is not there.'
        )
    auto_class, pipeline_tag = head_of(model)
    data = _metadata(
        title=title,
        base_model=base_model,
        pipeline_tag=pipeline_tag,
        eval_results=_eval_results(metrics, dataset, pipeline_tag),
        license=license,
        language=language,
    )
    return ModelCard.from_template(
        data,
        template_str=_template(),
        title=title,
        location=location,
        base_model=base_model,
        family=facts.family_of(model),
        model_type=model.config.model_type,
        schemes=[facts.describe_scheme(scheme) for scheme in relpos["schemes"]],
        native=facts.NATIVE[relpos["native"]],
        gate=facts.GATE[relpos["gate"]],
        settings=facts.settings(relpos),
        added=f"{report.added:,}",
        total=f"{report.total:,}",
        auto_class=auto_class,
        results=_result_rows(metrics, baseline),
        has_baseline=bool(baseline),
        dataset=dataset,
        starts_exact=report.config.starts_exact,
        training={name: _plain(value) for name, value in training.items()},
        conversion=conversion,
        progress=[{name: _plain(value) for name, value in row.items()} for row in progress],
        trained=trained,
        standalone=standalone,
        how_to_install=HOW_TO_INSTALL,
        without_installing=WITHOUT_INSTALLING,
        limits=[
            *([conversion.limit] if conversion else []),
            *facts.limits(model, report.trained_length, trained),
        ],
    )


def is_standalone(directory: Path) -> bool:
    """Whether a folder's config names code that lies in the folder for every Auto class, as `save_standalone` does."""
    config = directory / "config.json"
    if not config.is_file():
        return False
    return "AutoModel" in json.loads(config.read_text(encoding="utf-8")).get("auto_map", {})


def _template() -> str:
    """The text of the card template, as installed with the package."""
    return resources.files("hf_relpos.model_cards").joinpath("TEMPLATE.md").read_text(encoding="utf-8")


def base_of(model: PreTrainedModel, location: str) -> str | None:
    """The Hub id a model was loaded from.

    None if it came from a folder, whose path is nobody else's business, or from where it is going to.
    """
    name = getattr(model.config, "_name_or_path", "")
    if not name or name == location or Path(name).exists() or not is_hub_id(name):
        return None
    return name


def is_hub_id(name: str) -> bool:
    """Whether a name can be the id of a repo on the Hub."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def head_of(model: PreTrainedModel) -> tuple[str, str | None]:
    """The Auto class that loads a model, and its pipeline tag."""
    from hf_relpos.compat import transformers as compat

    known = {auto.__name__: mapping.get(type(model).config_class, ()) for auto, mapping in compat.auto_classes()}
    found = (name for name in _HEADS if name in known and isinstance(model, known[name]))
    auto_class = next(found, None)
    return ("AutoModel", None) if auto_class is None else (auto_class, _HEADS[auto_class])


def _metadata(
    *,
    title: str,
    base_model: str | None,
    pipeline_tag: str | None,
    eval_results: list[EvalResult] | None,
    license: str | None,
    language: str | list[str] | None,
) -> ModelCardData:
    from huggingface_hub import ModelCardData

    for code in [language] if isinstance(language, str) else language or []:
        if not re.fullmatch(r"[a-z]{2,3}|code|multilingual", code):
            raise ModelCardError(f"language is {code!r}, but must be an ISO 639 code like 'en' or 'deu'.")
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.\-]*", license):
        raise ModelCardError(f"license is {license!r}, but must be a licence id of the Hub like 'apache-2.0'.")
    return ModelCardData(
        library_name="transformers",
        base_model=base_model,
        pipeline_tag=pipeline_tag,
        tags=list(TAGS),
        license=license,
        language=language,
        model_name=title if eval_results else None,
        eval_results=eval_results,
    )


def _eval_results(
    metrics: Mapping[str, float] | None, dataset: str | None, pipeline_tag: str | None
) -> list[EvalResult] | None:
    """The numbers as the Hub's `model-index`, which needs a task and a data set to belong to."""
    from huggingface_hub import EvalResult

    if not (metrics and dataset and pipeline_tag):
        return None
    return [
        EvalResult(
            task_type=pipeline_tag,
            dataset_type=re.sub(r"[^a-z0-9]+", "-", dataset.lower()).strip("-"),
            dataset_name=dataset,
            metric_type=_METRICS.get(key, (key, key, None))[1],
            metric_name=_METRICS.get(key, (key, key, None))[0],
            metric_args=_METRICS.get(key, (key, key, None))[2],
            metric_value=float(value),
        )
        for key, value in metrics.items()
    ]


def _result_rows(metrics: Mapping[str, float] | None, baseline: Mapping[str, float] | None) -> list[dict[str, str]]:
    return [
        {
            "name": _METRICS.get(key, (key, key, None))[0],
            "value": _plain(value),
            "baseline": _plain(baseline[key]) if baseline and key in baseline else "not measured",
        }
        for key, value in (metrics or {}).items()
    ]


def _plain(value: Any) -> str:
    """A number with four significant decimals, anything else as it prints."""
    return f"{value:.4f}" if isinstance(value, float) and abs(value) >= 0.001 else str(value)
