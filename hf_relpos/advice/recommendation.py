"""``recommend``: what is known of a model, a task and texts, the rules that hold, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from textwrap import fill
from typing import Any

from hf_relpos.advice.rules import NO_GAIN, NOTHING, RULES, SHORT, Rule
from hf_relpos.advice.situation import TASKS, Situation, measure_lengths
from hf_relpos.config import RelPosConfig
from hf_relpos.errors import PatchStateError, RelPosConfigError, UnsupportedModelError
from hf_relpos.families import FAMILIES, AbsoluteEmbedding, supported_in_words
from hf_relpos.names import TYPE_PREFIX
from hf_relpos.texts import Texts

WIDTH = 100  # characters of a line of reasons


@dataclass(frozen=True)
class Reason:
    """Why something is proposed, or not to be expected.

    Attributes:
        words: a sentence or two.
        sources: where it is published; none where it follows from how the package works, or nothing is.
    """

    words: str
    sources: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Recommendation:
    """What to do with a model, and why. ``print`` it.

    Attributes:
        situation: what it goes by.
        do: ``"nothing"``, ``"patch"`` (with :func:`hf_relpos.patch_model`) or ``"convert"`` (with
            :func:`hf_relpos.convert`).
        relpos: the choices to do it with; None for ``"nothing"``.
        reasons: why.
        no_gain: where published work finds no gain.
    """

    situation: Situation
    do: str
    relpos: RelPosConfig | None
    reasons: tuple[Reason, ...]
    no_gain: tuple[Reason, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**asdict(self), "relpos": None if self.relpos is None else self.relpos.to_dict()}

    def __repr__(self) -> str:
        situation = self.situation
        reads = "any number of tokens" if situation.trained_length is None else f"{situation.trained_length:,} tokens"
        lines = [
            f"model     {situation.family}, pretrained with {situation.positions or 'no positions'}, reads {reads}",
            f"texts     {situation.lengths}",
            f"task      {situation.task}: {TASKS[situation.task]}",
            f"proposed  {self.do}",
        ]
        if self.relpos is not None:
            schemes = " + ".join(map(str, self.relpos.scheme_configs))
            lines.append(f"          {schemes}, native={self.relpos.native!r}")
        parts = ["\n".join(lines), _listed("why", self.reasons)]
        if self.no_gain:
            parts.append(_listed("where published work finds no gain", self.no_gain))
        return "\n\n".join(parts)


def recommend(
    model: Any, task: str, texts: Texts, tokenizer: Any, *, column: str = "text", samples: int = 1000
) -> Recommendation:
    """What to do with a model for a task, by what has been published, and why.

    Args:
        model: a model of Transformers that is not patched, or its config.
        task: one of ``hf_relpos.advice.situation.TASKS``.
        texts: like those that the model is for: a text file with an empty line between two texts, a data set of
            ``datasets`` or the id of one, or anything that gives strings.
        tokenizer: the model's.
        column: the column of a data set that has the texts.
        samples: so many texts are measured at most.

    Raises:
        UnsupportedModelError: (a ``TypeError``) if the model is of no supported family.
        PatchStateError: (a ``ValueError``) if it is patched already.
        RelPosConfigError: (a ``ValueError``) for a task that there is not.
        TextsError: (a ``ValueError``) for texts that cannot be read.
    """
    if task not in TASKS:
        raise RelPosConfigError(f"recommend: `task` is {task!r}, but must be one of {', '.join(map(repr, TASKS))}.")
    config = getattr(model, "config", model)
    family = FAMILIES.get(_model_type(config))
    if family is None:
        raise UnsupportedModelError(
            f"recommend was given a model of type {_model_type(config)!r}. {supported_in_words()}"
        )
    situation = Situation(
        family=family.package,
        positions=family.native_words,
        absolute=any(isinstance(native, AbsoluteEmbedding) for native in family.natives),
        trained_length=family.trained_length(config),
        mostly_trained_at=family.mostly_trained_at,
        task=task,
        lengths=measure_lengths(texts, tokenizer, column, samples),
    )
    return decide(situation)


def decide(situation: Situation) -> Recommendation:
    """What the rules come to in a situation."""
    settings: dict[str, Any] = {}
    reasons = []
    for rule in (rule for rule in RULES if rule.when(situation)):
        new = {name: value for name, value in rule.proposes.items() if name not in settings}
        if new and settings.get("do") != NOTHING:
            settings.update({name: value(situation) if callable(value) else value for name, value in new.items()})
            reasons.append(rule)
    relpos = None
    if settings["do"] != NOTHING:
        relpos = RelPosConfig(schemes=settings["schemes"], native=settings["native"])
    no_gain = [rule for rule in NO_GAIN if rule.when(situation)]
    return Recommendation(situation, settings["do"], relpos, _reasons(reasons, situation), _reasons(no_gain, situation))


def _model_type(config: Any) -> str:
    name = str(getattr(config, "model_type", type(config).__name__))
    if name.startswith(TYPE_PREFIX):
        raise PatchStateError(
            f"recommend was given a model of type {name!r}, which has relative positions already. Give it the model as "
            "it was before."
        )
    return name


def _reasons(rules: Iterable[Rule], situation: Situation) -> tuple[Reason, ...]:
    known = {**vars(situation), "short": SHORT}
    return tuple(Reason(rule.because.format(**known), rule.sources) for rule in rules)


def _listed(title: str, reasons: Iterable[Reason]) -> str:
    lines = [title]
    for reason in reasons:
        lines.append(fill(reason.words, WIDTH, initial_indent="  - ", subsequent_indent="    "))
        lines += [f"    [{source}]" for source in reason.sources]
    return "\n".join(lines)
