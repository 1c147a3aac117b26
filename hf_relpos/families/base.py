"""What the package has to know of a model family: where things are, in names. No copy of any forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import nn

from hf_relpos.errors import FamilyError, NothingPatchedError
from hf_relpos.families.native import NativePositions, NativeTable, attributes
from hf_relpos.names import CLASS_PREFIX
from hf_relpos.schemes import AttentionGeometry

# Where something is on an attention module: a path of attributes with dots between them, or a function of the module.
Attribute = str | Callable[[Any], Any]


def _never(path: str, attention: nn.Module) -> bool:
    return False


@dataclass(frozen=True, eq=False)
class Family:
    """One model family: what its modules are called, and where on them things are.

    All names are checked when first used, those of classes on the family's modeling module, those of attributes on
    each model. :class:`hf_relpos.FamilyError` then says what was looked for, where, and what is there.

    Attributes:
        package: the family's ``model_type``, and its package in Transformers, if it is there.
        config: class name of its config in ``transformers.models.<package>.configuration_<package>``; or the class.
        attention: class name of the modules that do self-attention.
        num_heads: how many heads of queries such a module has: ``"n_heads"``, ``"config.num_attention_heads"``, or a
            function of the module.
        head_dim: the size of a head, likewise.
        causal: whether queries only look back, likewise.
        natives: the positions it is pretrained with: none, one kind or several.
        is_cross_attention: tells modules of that class that do cross-attention, from their path and themselves.
        overrides: class name to the mixin that adjusts what those modules do, or, for the base of the family's models,
            all models; see the family's file for why.
        mostly_trained_at: how many tokens nine in ten sequences of its pretraining had at most, where that is published
            and less than its models can read.
        adapters_like: the model type whose modules are called alike, where PEFT has no default targets for its own.
        module: name of its modeling module; None means ``transformers.models.<package>.modeling_<package>``.
    """

    package: str
    config: str | type
    attention: str
    num_heads: Attribute
    head_dim: Attribute
    causal: Attribute
    natives: tuple[NativePositions, ...] = ()
    is_cross_attention: Callable[[str, nn.Module], bool] = _never
    overrides: Mapping[str, type] = field(default_factory=dict)
    mostly_trained_at: int | None = None
    adapters_like: str | None = None
    module: str | None = None

    @property
    def modeling_name(self) -> str:
        """The name of the family's modeling module."""
        return self.module or f"transformers.models.{self.package}.modeling_{self.package}"

    @cached_property
    def modeling(self) -> ModuleType:
        """That module, imported and compared with the spec on first use (it is what takes long to import).

        Raises:
            FamilyError: if there is no such module, or a class that the spec names is not in it.
        """
        module = self._imported(self.modeling_name)
        names = {"attention": [self.attention], "overrides": list(self.overrides)}
        names["natives"] = [native.owner for native in self.natives if isinstance(native, NativeTable)]
        for what, classes in names.items():
            for name in classes:
                self._class_in(module, what, name, nn.Module)
        return module

    @cached_property
    def config_class(self) -> Any:
        """The family's config class.

        Raises:
            FamilyError: if there is none, or its ``model_type`` is another.
        """
        from transformers import PreTrainedConfig

        config: Any = self.config
        if isinstance(self.config, str):
            module = self._imported(f"transformers.models.{self.package}.configuration_{self.package}")
            config = self._class_in(module, "config", self.config, PreTrainedConfig)
        elif not (isinstance(self.config, type) and issubclass(self.config, PreTrainedConfig)):
            raise self._wrong("config", self.config, "a config class of Transformers, or the name of one")
        if config.model_type != self.package:
            raise FamilyError(
                f"The family {self.package!r} has {config.__name__} for its `config`, whose model_type is "
                f"{config.model_type!r}; the two must be the same."
            )
        return config

    def check(self) -> None:
        """Check of the spec what can be checked without importing the family's modelling code.

        Raises:
            FamilyError: names what is wrong.
        """
        for what in ("package", "attention"):
            if not (isinstance(getattr(self, what), str) and getattr(self, what)):
                raise self._wrong(what, getattr(self, what), "a name")
        for what in ("num_heads", "head_dim", "causal"):
            if not (isinstance(getattr(self, what), str) or callable(getattr(self, what))):
                raise self._wrong(what, getattr(self, what), "a path of attributes, or a function of the module")
        if not isinstance(self.natives, tuple) or not all(isinstance(each, NativePositions) for each in self.natives):
            raise self._wrong("natives", self.natives, "a tuple of native positions, as in hf_relpos.families")
        overrides = self.overrides
        if not isinstance(overrides, Mapping) or not all(isinstance(mixin, type) for mixin in overrides.values()):
            raise self._wrong("overrides", self.overrides, "a mixin class for each class name")
        self.config_class  # noqa: B018

    @property
    def config_name(self) -> str:
        """The name of the family's config class, which is not imported for it."""
        return self.config if isinstance(self.config, str) else self.config.__name__

    @property
    def prefix(self) -> str:
        """How the names of the family's classes begin."""
        return self.config_name.removesuffix("Config")

    def patched_name(self, name: str) -> str:
        """What the patched class is called for one of the family's: unlike that of any other family's."""
        return CLASS_PREFIX + (name if name.startswith(self.prefix) else self.prefix + name)

    def geometry(self, attention: Any) -> AttentionGeometry:
        """The heads and direction of one self-attention module.

        Raises:
            FamilyError: if an attribute that the spec names is not there, or is no such number.
        """
        return AttentionGeometry(
            num_heads=self._number("num_heads", attention),
            head_dim=self._number("head_dim", attention),
            # Transformers lets a config turn a causal model's mask bidirectional.
            causal=bool(self._value("causal", attention) and getattr(attention.config, "is_causal", True)),
        )

    def trained_length(self, config: Any) -> int | None:
        """How many positions a model was pretrained with, by its config; None where length is not bounded."""
        lengths = [native.trained_length(config) for native in self.natives]
        return min((length for length in lengths if length is not None), default=None)

    @property
    def native_words(self) -> str | None:
        """What positions the family is pretrained with, as part of a sentence; None if there are none."""
        return " and ".join(dict.fromkeys(native.words for native in self.natives)) or None

    def native_tables(self, model: nn.Module) -> Iterator[tuple[str, NativeTable, Any]]:
        """Every place in a model where there is or was a native table: path, kind of table, and the module it is in."""
        for native in self.natives:
            if isinstance(native, NativeTable):
                for path, owner in native.owners(model, self.modeling):
                    yield f"{path}.{native.table}".lstrip("."), native, owner

    def stock_tables(self, model: nn.Module, choice: str) -> list[tuple[NativeTable, Any]]:
        """The native tables that are to be changed for ``native=choice``, with the modules they are in.

        Raises:
            FamilyError: if what the spec says of a table is not so.
            NothingPatchedError: if there is nothing in the model that could become what was chosen. The model may have
                been changed already: then there is nothing to do.
        """
        tables = list(self.native_tables(model))
        stock = [(native, owner) for _, native, owner in tables if native.is_stock(owner)]
        for native, owner in stock:
            native.check(owner)
        if choice != "keep":
            self._check_choice(model, choice, tables)
        return stock

    def _check_choice(self, model: nn.Module, choice: str, tables: list[tuple[str, NativeTable, Any]]) -> None:
        name = type(model).__name__
        keep = f'Pass RelPosConfig(..., native="keep") instead of native={choice!r}. Nothing was patched.'
        if not self.natives:
            raise NothingPatchedError(f"{name} was pretrained without positions that could be changed. {keep}")
        for native in self.natives:
            if choice not in native.choices:
                raise NothingPatchedError(f"{name} was pretrained with {native.words}, which can only be kept. {keep}")
        for path, native, owner in tables:
            found = native.table_of(owner)
            if found is not None and not native.is_stock(owner) and not native.is_changed(owner):
                raise NothingPatchedError(
                    f"{name} has a {type(found).__name__} at {path!r}, where a table of positions (an nn.Embedding) "
                    f"was looked for. {keep}"
                )
        if not any(native.is_stock(owner) or native.is_changed(owner) for _, native, owner in tables):
            looked = ", ".join(
                f"{native.owner}.{native.table}" for native in self.natives if isinstance(native, NativeTable)
            )
            children = {type(owner).__name__: ", ".join(owner._modules) for _, _, owner in tables}
            there = "; ".join(f"{owner} has {names or 'no modules'}" for owner, names in children.items())
            raise NothingPatchedError(
                f"{name} has none of the positions it was expected to be pretrained with: {looked} was looked for, "
                f"but {there or 'there is no such module'}. {keep}"
            )

    def _number(self, what: str, attention: nn.Module) -> int:
        value = self._value(what, attention)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise FamilyError(
                f"The family {self.package!r} says {getattr(self, what)!r} for `{what}`, which is {value!r} on "
                f"{type(attention).__name__}, but must be a whole number of at least 1."
            )
        return value

    def _value(self, what: str, attention: nn.Module) -> Any:
        """What the spec says about an attention module, looked up on it."""
        given = getattr(self, what)
        if callable(given):
            try:
                return given(attention)
            except Exception as error:
                raise FamilyError(
                    f"The family {self.package!r} has a function for `{what}` that failed on "
                    f"{type(attention).__name__}: {type(error).__name__}: {error}."
                ) from error
        value: Any = attention
        for name in given.split("."):
            if not hasattr(value, name):
                raise FamilyError(
                    f"The family {self.package!r} says {given!r} for `{what}`, but {type(value).__name__} has no "
                    f"attribute {name!r}; it has {', '.join(attributes(value))}. Give the right path (with dots), or a "
                    f"function of the {type(attention).__name__}."
                )
            value = getattr(value, name)
        return value

    def _imported(self, name: str) -> ModuleType:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there, and lacks something itself
            raise FamilyError(
                f"The family {self.package!r} needs the module {name}, and there is no {error.name}. Where it is "
                "elsewhere, give its name as `module`, and the config class itself as `config`."
            ) from error

    def _class_in(self, module: ModuleType, what: str, name: str, kind: type) -> type:
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, kind):
            return found
        there = [known for known, value in vars(module).items() if isinstance(value, type) and issubclass(value, kind)]
        raise FamilyError(
            f"The family {self.package!r} names {name!r} in its `{what}`, but {module.__name__} has no such class; it "
            f"has {', '.join(get_close_matches(name, there, n=5, cutoff=0.3) or sorted(there)) or 'none'}."
        )

    def _wrong(self, what: str, value: object, allowed: str) -> FamilyError:
        return FamilyError(f"The family {self.package!r} has {value!r} for its `{what}`, which must be {allowed}.")
