"""Model cards: `model_cards/TEMPLATE.md`, filled from a patched model's config and from measured numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_relpos.errors import RelPosError

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData
    from transformers import PreTrainedModel

TAGS = ["hf_relpos", "relative-position"]

# How the name of a task head ends -> (Auto class that loads it, the Hub's pipeline tag if there is one).
_HEADS: dict[str, tuple[str, str | None]] = {
    "ForSequenceClassification": ("AutoModelForSequenceClassification", "text-classification"),
    "ForTokenClassification": ("AutoModelForTokenClassification", "token-classification"),
    "ForQuestionAnswering": ("AutoModelForQuestionAnswering", "question-answering"),
    "ForMultipleChoice": ("AutoModelForMultipleChoice", "multiple-choice"),
    "ForNextSentencePrediction": ("AutoModelForNextSentencePrediction", None),
    "ForPreTraining": ("AutoModelForPreTraining", None),
    "ForMaskedLM": ("AutoModelForMaskedLM", "fill-mask"),
    "ForConditionalGeneration": ("AutoModelForSeq2SeqLM", None),
    "LMHeadModel": ("AutoModelForCausalLM", "text-generation"),
    "ForCausalLM": ("AutoModelForCausalLM", "text-generation"),
    "T5EncoderModel": ("AutoModelForTextEncoding", "feature-extraction"),
    "Model": ("AutoModel", "feature-extraction"),
}

# What a measured number is called: key in `metrics` -> (name for readers, the Hub's id, its arguments).
_METRICS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "accuracy": ("accuracy", "accuracy", None),
    "f1": ("F1", "f1", None),
    "f1_macro": ("macro-F1", "f1", {"average": "macro"}),
    "loss": ("loss", "loss", None),
    "perplexity": ("perplexity", "perplexity", None),
}

_NATIVE = {
    "keep": "kept as they were",
    "gate": "kept, times a learned number that started at 1",
    "drop": "dropped",
}

_GATE = {
    "none": "fixed",
    "head": "one learned gate per layer and head, started at 1",
    "token": "a gate computed from each token's query, per head, started at 1",
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
    title: str | None = None,
    license: str | None = None,
    language: str | list[str] | None = None,
    trained: bool | None = False,
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
        title: Name of the model; the folder's name by default.
        license: Licence id of the Hub, for example `"apache-2.0"`.
        language: ISO 639 code or codes, for example `"en"`.
        trained: Whether the model was trained after it was patched; None if that is not known. Numbers or a
            training table say that it was.
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

    from huggingface_hub import ModelCard

    from hf_relpos.patching import patch_report

    report = patch_report(model)
    relpos = report.config.to_dict()
    title = title or directory.resolve().name
    trained = True if metrics or training else trained
    base_model = _hub_id(model, base_model)
    auto_class, pipeline_tag = _head_of(model)
    data = _metadata(
        title=title,
        base_model=base_model,
        pipeline_tag=pipeline_tag,
        eval_results=_eval_results(metrics, dataset, pipeline_tag),
        license=license,
        language=language,
    )
    card = ModelCard.from_template(
        data,
        template_str=_template(),
        title=title,
        folder=directory.resolve().name,
        base_model=base_model,
        family=_family_of(model),
        model_type=model.config.model_type,
        schemes=[_describe_scheme(scheme) for scheme in relpos["schemes"]],
        native=_NATIVE[relpos["native"]],
        gate=_GATE[relpos["gate"]],
        settings=_settings(relpos),
        added=f"{report.added:,}",
        total=f"{report.total:,}",
        auto_class=auto_class,
        results=_result_rows(metrics, baseline),
        has_baseline=bool(baseline),
        dataset=dataset,
        starts_exact=_starts_exact(relpos),
        training={name: _plain(value) for name, value in (training or {}).items()},
        trained=trained,
        limits=_limits(relpos, report.trained_length, trained=trained),
    )
    directory.mkdir(parents=True, exist_ok=True)
    card.save(path)
    return path


def _template() -> str:
    """The text of the card template, as installed with the package."""
    return resources.files("hf_relpos.model_cards").joinpath("TEMPLATE.md").read_text(encoding="utf-8")


def _hub_id(model: PreTrainedModel, given: str | None) -> str | None:
    """The base model's Hub id; None if the model came from a folder, whose path is nobody else's business."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    name = given if given is not None else getattr(model.config, "_name_or_path", "")
    if given is None and (not name or Path(name).exists()):
        return None
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        if given is None:
            return None
        raise ModelCardError(
            f"base_model is {given!r}, but must be the id of a model on the Hub, like "
            '"google-bert/bert-base-uncased". Leave it out for a model that is not there.'
        ) from error
    return name


def _head_of(model: PreTrainedModel) -> tuple[str, str | None]:
    name = type(model).__name__
    for ending, head in _HEADS.items():
        if name.endswith(ending):
            return head
    return "AutoModel", None


def _family_of(model: PreTrainedModel) -> str:
    return model.config.model_type.removeprefix("relpos-")


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


def _describe_scheme(scheme: Mapping[str, Any]) -> str:
    fields = ", ".join(f"{name}={value!r}" for name, value in scheme.items() if name != "type")
    return f"`{scheme['type']}` ({fields})" if fields else f"`{scheme['type']}`"


def _settings(relpos: Mapping[str, Any]) -> dict[str, str]:
    """The remaining fields of the config."""
    window, layers = relpos["window"], relpos["layers"]
    return {
        "window": "none, every token is seen" if window is None else f"{window} tokens to each side",
        "layers": "all" if layers is None else ", ".join(map(str, layers)),
        "tables and gates": "shared by the layers" if relpos["share_layers"] else "one set per layer",
        "engine": relpos["engine"],
        "written by": f"hf_relpos {relpos['version']}",
    }


def _starts_exact(relpos: Mapping[str, Any]) -> bool:
    """Whether a fresh patch of this kind leaves the model's function as it was."""
    return (
        relpos["native"] != "drop"
        and relpos.get("window") is None
        and all(scheme.get("init", "zeros") == "zeros" for scheme in relpos["schemes"])
    )


def _limits(relpos: Mapping[str, Any], trained_length: int | None, *, trained: bool | None) -> list[str]:
    limits = []
    if relpos["native"] != "drop" and trained_length is not None:
        limits.append(
            f"Inputs of more than {trained_length} tokens are refused: the pretrained positions end there. "
            'Patch with `native="drop"` and fine-tune to go beyond.'
        )
    for scheme in relpos["schemes"]:
        if "max_distance" in scheme:
            limits.append(
                f"`{scheme['type']}` does not tell tokens apart that are {scheme['max_distance']} "
                "or more positions away on the same side."
            )
    if trained is False:
        limits.append("The relative tables are at their start values until the model is fine-tuned.")
    limits.append("Everything that holds for the model it was made from (data, language, biases) holds here as well.")
    return limits


def _plain(value: Any) -> str:
    """A number with four significant decimals, anything else as it prints."""
    return f"{value:.4f}" if isinstance(value, float) and abs(value) >= 0.001 else str(value)
