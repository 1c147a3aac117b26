"""All the choices of a patch in one frozen record: its fields, their checks, and the way to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from hf_relpos.errors import RelPosConfigError, UnknownFieldError, refuse_unknown, wrong_value
from hf_relpos.formats import FORMAT, current_engine, migrate
from hf_relpos.names import ENGINE_NAMES
from hf_relpos.schemes import SCHEMES, SchemeConfig
from hf_relpos.schemes.base import TABLES
from hf_relpos.schemes.spelling import meant_by
from hf_relpos.version import __version__

NATIVE = ("keep", "gate", "drop")
GATES = ("none", "head", "token")


@dataclass(frozen=True)
class RelPosConfig:
    """How a model's self-attention uses relative positions.

    Attributes:
        schemes: one or several scheme configs (or their names); they add up.
        native: what becomes of the positions the model was pretrained with: ``"keep"`` them, ``"gate"`` them (times a
            learned number that starts at 1) or ``"drop"`` them.
        gate: how strongly the relative terms act: ``"none"`` leaves them alone, ``"head"`` learns one number per layer
            and head, ``"token"`` computes one from each query. Every gate starts at exactly 1. Where no scheme has
            terms (a rotation, a branch) there is nothing to gate, and this becomes ``"none"``.
        window: local attention; a query sees keys at most this far away. None sees all.
        layers: the layers that get relative positions, counted from 0 in each stack; None means all.
        share_layers: one set of tables and gates for all layers of a stack instead of one per layer.
        engine: how attention is computed; ``"auto"`` picks the fastest engine that is exact for the case. (The names
            of engines of release 0.1.0 that are gone are taken as ``"auto"``.)

    Raises:
        RelPosConfigError: (a ``ValueError``) for a wrong value; names the field, the value and what is allowed. For a
            field that there is not, an :class:`UnknownFieldError` (also a ``TypeError``).
    """

    schemes: Sequence[SchemeConfig | str | Mapping[str, Any]] | SchemeConfig | str = ()
    native: str = "gate"
    gate: str = "head"
    window: int | None = None
    layers: Sequence[int] | None = None
    share_layers: bool = False
    engine: str = "auto"

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """A new config, if it has all the fields given."""
        refuse_unknown(cls.__name__, given, cls.names(), "; what only a scheme has goes into its own config")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        _refuse_class("schemes", self.schemes)
        schemes = [self.schemes] if isinstance(self.schemes, (str, SchemeConfig)) else self.schemes
        if not isinstance(schemes, Sequence) or not schemes:
            raise self._wrong("schemes", f"at least one scheme: {_scheme_names()} or a scheme config")
        object.__setattr__(self, "schemes", tuple(_scheme(entry) for entry in schemes))
        object.__setattr__(self, "engine", current_engine(self.engine))
        for name, allowed in (("native", NATIVE), ("gate", GATES), ("engine", ENGINE_NAMES)):
            if getattr(self, name) not in allowed:
                raise self._wrong(name, "one of " + ", ".join(map(repr, allowed)))
        if self.window is not None and (not _is_int(self.window) or self.window < 1):
            raise self._wrong("window", "None or a whole number of at least 1")
        if self.layers is not None:
            layers = tuple(self.layers) if isinstance(self.layers, Sequence) else ()
            if not layers or not all(_is_int(layer) and layer >= 0 for layer in layers):
                raise self._wrong("layers", "None or a list of layer numbers counted from 0")
            object.__setattr__(self, "layers", tuple(sorted(set(layers))))
        if not isinstance(self.share_layers, bool):
            raise self._wrong("share_layers", "True or False")
        self._check_combination()
        if not any(scheme.parts & TABLES for scheme in self.scheme_configs):
            object.__setattr__(self, "gate", "none")

    def _check_combination(self) -> None:
        """Refuse schemes that cannot act together, or not in these layers."""
        schemes = self.scheme_configs
        rotations = [scheme for scheme in schemes if "rotation" in scheme.parts]
        vectors = [scheme for scheme in schemes if scheme.parts & {"query", "key"}]
        if len(rotations) > 1:
            raise self._wrong("schemes", "schemes of which at most one rotates queries and keys")
        if rotations and vectors:
            raise self._wrong(
                "schemes",
                f"schemes that go together: {rotations[0].name!r} rotates queries and keys, and {vectors[0].name!r} "
                "multiplies its vectors with them as they are; a bias goes with either",
            )
        for scheme in schemes:
            if scheme.first_layers is None:
                continue
            if self.share_layers:
                raise self._wrong("share_layers", f"False where a scheme acts in the first layers only: {scheme}")
            if self.layers is not None and min(self.layers) >= scheme.first_layers:
                raise self._wrong(
                    "layers", f"None or contain one in which {scheme} acts: {_below(scheme.first_layers)}"
                )

    @property
    def scheme_configs(self) -> tuple[SchemeConfig, ...]:
        """``schemes``, which were turned into configs when this was made."""
        return self.schemes  # type: ignore[return-value]

    @property
    def function(self) -> RelPosConfig:
        """This config without what only changes how attention is computed, or where training starts.

        Two configs compute the same function, given the same parameters, where these are equal.
        """
        return replace(self, schemes=[scheme.function for scheme in self.scheme_configs], engine="auto")

    @property
    def starts_exact(self) -> bool:
        """Whether a fresh patch leaves the model's function as it was."""
        return self.native != "drop" and self.window is None and all(s.starts_exact for s in self.scheme_configs)

    @property
    def learns(self) -> bool:
        """Whether a patch adds parameters."""
        return self.native == "gate" or self.gate != "none" or any(s.learns for s in self.scheme_configs)

    def __str__(self) -> str:
        """The choices as one would write them: the schemes, and what is not as by default. ``repr`` has all fields."""
        schemes = ", ".join(map(str, self.scheme_configs))
        others = [
            f"{field.name}={value!r}"
            for field in fields(self)
            if field.name != "schemes" and (value := getattr(self, field.name)) != field.default
        ]
        return f"RelPosConfig({', '.join([schemes if len(self.scheme_configs) == 1 else f'[{schemes}]', *others])})"

    def _wrong(self, field: str, allowed: str) -> RelPosConfigError:
        return wrong_value("RelPosConfig", field, getattr(self, field), allowed)

    @classmethod
    def names(cls) -> list[str]:
        """The names of the fields."""
        return [field.name for field in fields(cls)]

    @classmethod
    def of(cls, relpos: RelPosLike) -> RelPosConfig:
        """The config that a user's shorthand stands for.

        Args:
            relpos: a config, a scheme config, a scheme's name, several of these, or a config as JSON.

        Raises:
            RelPosConfigError: if it is none of these, or holds a wrong value.
        """
        _refuse_class("relpos", relpos)
        if isinstance(relpos, RelPosConfig):
            return relpos
        if isinstance(relpos, Mapping):
            return cls.from_dict(relpos)
        if isinstance(relpos, (str, SchemeConfig, list, tuple)):
            return cls(schemes=relpos)
        raise wrong_value(
            "RelPosConfig", "relpos", relpos, f"a RelPosConfig, a scheme config, or a scheme's name ({_scheme_names()})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, with its format and the version of the package that wrote it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["schemes"] = [scheme.to_dict() for scheme in self.scheme_configs]
        values["layers"] = None if self.layers is None else list(self.layers)
        return {**values, "format": FORMAT, "version": __version__}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RelPosConfig:
        """The config that :meth:`to_dict` wrote, in this version or an earlier one.

        Raises:
            RelPosConfigError: for a field this version does not know (a newer version may have written it; dropping
                it would silently compute something else) or a wrong value.
        """
        given = migrate(values)
        version = given.pop("version", None)
        refuse_unknown(cls.__name__, given, cls.names(), _written_by(version))
        schemes = given.get("schemes")
        if isinstance(schemes, (list, tuple)):
            given["schemes"] = [_scheme(entry, version) for entry in schemes]
        return cls(**given)


RelPosLike = RelPosConfig | SchemeConfig | str | Sequence[SchemeConfig | str] | Mapping[str, Any]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _below(count: int) -> str:
    return "0" if count == 1 else f"0 to {count - 1}"


def _scheme_names() -> str:
    return ", ".join(map(repr, SCHEMES))


def _scheme(entry: Any, version: str | None = None) -> SchemeConfig:
    """One entry of ``schemes`` as its config."""
    _refuse_class("schemes", entry)
    if isinstance(entry, SchemeConfig):
        return entry
    if isinstance(entry, str):
        entry = {"type": entry}
    if not isinstance(entry, Mapping):
        raise wrong_value("RelPosConfig", "schemes", entry, f"scheme configs or names ({_scheme_names()})")
    given = dict(entry)
    name = given.pop("type", None)
    if name not in SCHEMES:
        error = wrong_value("RelPosConfig", "scheme", name, f"one of {_scheme_names()}{_written_by(version)}")
        raise RelPosConfigError(f"{error}{meant_by(name)}")
    scheme = SCHEMES[name]
    refuse_unknown(scheme.__name__, given, scheme.names(), _written_by(version))
    return scheme(**given)


def refuse_choices(owner: str, given: Mapping[str, Any]) -> None:
    """Raise the error for choices that were given beside ``relpos``, if there are any.

    Args:
        owner: what was called with them.
        given: the choices, by name.

    Raises:
        UnknownFieldError: (a ``ValueError`` and a ``TypeError``) says where they belong.
    """
    if not given:
        return
    ours = [f"{name}={value!r}" for name, value in given.items() if name in RelPosConfig.names()]
    where = (
        f"give it as relpos=RelPosConfig(schemes=..., {', '.join(ours)})"
        if ours
        else f"RelPosConfig has {', '.join(map(repr, RelPosConfig.names()))}, and a scheme's config its own fields"
    )
    raise UnknownFieldError(
        f"{owner} has no argument {', '.join(map(repr, given))}: all choices are made in `relpos`; {where}."
    )


def _refuse_class(field: str, value: object) -> None:
    if isinstance(value, type) and issubclass(value, (SchemeConfig, RelPosConfig)):
        raise RelPosConfigError(
            f"RelPosConfig: `{field}` is the class {value.__name__}, but must be made of it: {value.__name__}(...)."
        )


def _written_by(version: str | None) -> str:
    if version is None or version == __version__:
        return ""
    return f" (written by hf_relpos {version}, this is {__version__}: a matching version can read it)"
