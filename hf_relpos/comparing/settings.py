"""A position setting: what is done about a model's positions before it is fine-tuned, and the word that names it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_relpos.comparing.errors import ComparisonError
from hf_relpos.config import NATIVE, RelPosConfig, RelPosLike
from hf_relpos.errors import RelPosConfigError
from hf_relpos.schemes.spelling import parse as parse_scheme

UNPATCHED, CONVERTED = "unpatched", "converted"
SPELLING = "[WHAT/]SCHEME[:K][+SCHEME[:K]]"
ALONE = {"gate": "shaw:16", "drop": "shaw:16", CONVERTED: "clipped:128+shaw:64,per_head=true"}
USUAL = (UNPATCHED, "shaw:8", "shaw:16", "t5", "alibi", "gate", "drop")

# Words that name settings, or choices by names of a user's own, None for the model as it is.
Settings = Iterable[str] | Mapping[str, RelPosLike | None]


@dataclass(frozen=True)
class Setting:
    """What is done about a model's positions before it is fine-tuned.

    Attributes:
        name: the word that names it.
        relpos: the choices of the patch; None where the model stays as it is.
        converted: whether the model is first taught, without labels, to do with these in place of its own.
    """

    name: str
    relpos: RelPosConfig | None
    converted: bool = False

    @property
    def keeps_native(self) -> bool:
        """Whether the model keeps the positions that bound what it can read."""
        return self.relpos is None or self.relpos.native != "drop"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        relpos = None if self.relpos is None else self.relpos.to_dict()
        return {"name": self.name, "relpos": relpos, "converted": self.converted}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Setting:
        """The setting that :meth:`to_dict` wrote."""
        relpos = values["relpos"]
        return cls(values["name"], None if relpos is None else RelPosConfig.from_dict(relpos), values["converted"])


def parse(given: str) -> Setting:
    """The setting that a word names.

    ``unpatched`` is the model as it is; ``shaw:8`` or ``t5+shaw:8`` are relative positions beside its own;
    ``gate/shaw:8`` gates its own, ``drop/shaw:8`` drops them, and ``converted/shaw:8`` drops them in a model that was
    taught to do without (:func:`hf_relpos.convert`). ``gate``, ``drop`` and ``converted`` alone take ``ALONE``.

    Raises:
        ComparisonError: for a word that names none.
    """
    if given == UNPATCHED:
        return Setting(given, None)
    what, slash, schemes = given.partition("/")
    if not slash:
        what, schemes = (given, ALONE[given]) if given in ALONE else ("keep", given)
    if what not in (*NATIVE, CONVERTED):
        raise ComparisonError(
            f"The setting {given!r} begins with {what!r}/, but must begin with one of "
            f"{', '.join(f'{one}/' for one in (*NATIVE, CONVERTED))}, or have no '/'."
        )
    try:
        chosen = [parse_scheme(one) for one in schemes.split("+")]
        native = "drop" if what == CONVERTED else what
        return Setting(given, RelPosConfig(chosen, native=native), what == CONVERTED)
    except RelPosConfigError as error:
        raise ComparisonError(
            f"The setting {given!r} is none: {error} A setting is {UNPATCHED}, {', '.join(ALONE)}, or {SPELLING} with "
            f"{', '.join((*NATIVE, CONVERTED))} as WHAT."
        ) from error


def with_distance(given: str, distance: int) -> str:
    """The word for a setting of one scheme, given without its clip distance, with one.

    Raises:
        ComparisonError: if it has one already, names several schemes, or one that has none.
    """
    name, comma, fields = given.partition(",")
    if ":" in name or "+" in given:
        raise ComparisonError(f"The scheme {given!r} must be a single one without a clip distance, as in 'shaw'.")
    word = f"{name}:{distance}{comma}{fields}"
    parse(word)
    return word


def settings_of(given: Settings) -> tuple[Setting, ...]:
    """The settings that words name, or that a user gave by names of their own.

    Raises:
        ComparisonError: if there is none, if one is given twice, or if a word names none.
        RelPosConfigError: for a wrong choice.
    """
    if isinstance(given, str):
        raise ComparisonError(f"`settings` is the text {given!r}. Give a list of settings: [{given!r}, ...].")
    if isinstance(given, Mapping):
        found = [Setting(name, None if one is None else RelPosConfig.of(one)) for name, one in given.items()]
    else:
        found = [parse(one) for one in given]
    names = [setting.name for setting in found]
    if not found or len(set(names)) < len(names):
        raise ComparisonError(
            f"The settings are {', '.join(names) or 'none'}. Give at least one, and none of them twice."
        )
    return tuple(found)
