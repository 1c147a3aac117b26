"""The positions that a family is pretrained with: where they are, and how they are gated, dropped and put back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from torch import Tensor, nn

from hf_relpos.errors import FamilyError
from hf_relpos.families.tables import DroppedTable, GatedTable, NativeGate, gated_class

# Marks a module whose native tables were dropped. Holds each by its name, in a dict, so that PyTorch does not take it
# for a child; or None for it, in a model that never had it. (Models pickled by 0.1.0 have a tuple of the one table, or
# an empty one.)
DROPPED = "_relpos_dropped"


class NativePositions(ABC):
    """One kind of positions that a family is pretrained with.

    Attributes:
        words: what they are, as part of a sentence.
        choices: what may become of them: values of ``RelPosConfig.native``.
        rotate: whether they turn queries and keys.
    """

    words: ClassVar[str]
    choices: ClassVar[tuple[str, ...]] = ("keep",)
    rotate: ClassVar[bool] = False

    def trained_length(self, config: Any) -> int | None:
        """How many positions a model with a config has; None where length is not bounded."""
        return None


class RotaryPositions(NativePositions):
    """A rotation of queries and keys inside the family's attention. It can only be kept."""

    words = "a rotation of queries and keys"
    rotate = True


@dataclass(frozen=True)
class NativeTable(NativePositions):
    """Positions that are a table, an ``nn.Embedding`` or of a class derived from it.

    Attributes:
        owner: class name of the module that has the table.
        table: the attribute that is the table.
    """

    owner: str
    table: str

    choices = ("keep", "gate", "drop")
    bounded: ClassVar[bool]

    def owners(self, model: nn.Module, modeling: ModuleType) -> Iterator[tuple[str, nn.Module]]:
        """Path and module of each owner in a model, whether it has a table or not.

        Args:
            model: of the family.
            modeling: the family's modeling module.
        """
        owner_class = getattr(modeling, self.owner)
        return ((path, module) for path, module in model.named_modules() if isinstance(module, owner_class))

    def check(self, owner: nn.Module) -> None:
        """Compare what is said of a stock table with it.

        Raises:
            FamilyError: names what is wrong.
        """

    def table_of(self, owner: nn.Module) -> nn.Module | None:
        """What an owner has for its table, which may be ours, or one that an adapter has wrapped."""
        return owner._modules.get(self.table)

    def is_stock(self, owner: nn.Module) -> bool:
        """Whether an owner has its table as the family made it."""
        table = self.table_of(owner)
        return isinstance(table, nn.Embedding) and not isinstance(table, GatedTable)

    def is_changed(self, owner: nn.Module) -> bool:
        """Whether a patch has gated or dropped an owner's table."""
        marks = (GatedTable, DroppedTable)
        return self.table in self._dropped(owner) or self._contains(owner, marks)

    def agrees(self, owner: nn.Module, choice: str) -> bool:
        """Whether an owner's table is what ``native=choice`` has made of it, or there is none."""
        if choice == "keep" or self.table_of(owner) is None:
            return True
        return self._contains(owner, NativeGate if choice == "gate" else DroppedTable)

    def _contains(self, owner: nn.Module, kinds: type | tuple[type, ...]) -> bool:
        """Whether an owner's table is of a kind, be it inside an adapter's wrapper."""
        table = self.table_of(owner)
        return table is not None and any(isinstance(inner, kinds) for inner in table.modules())

    def change(self, owner: nn.Module, choice: str, keep_dropped: bool) -> None:
        """Make of an owner's stock table what was chosen.

        Args:
            owner: changed in place.
            choice: ``"keep"``, ``"gate"`` or ``"drop"``.
            keep_dropped: whether to keep a dropped table for the way back.
        """
        table: Any = self.table_of(owner)
        if choice == "drop":
            self._drop(owner)
            owner.__dict__[DROPPED] = {**self._dropped(owner), self.table: table if keep_dropped else None}
        elif choice == "gate" or self.bounded:
            base: Any = type(table)
            table.__class__ = gated_class(base, self.bounded)
            table.relpos_gate = NativeGate(table.weight) if choice == "gate" else None

    @abstractmethod
    def _drop(self, owner: nn.Module) -> None:
        """Take the table out of its owner."""

    def _put_back(self, owner: nn.Module, table: nn.Module) -> None:
        """Undo that."""
        setattr(owner, self.table, table)

    def is_lost(self, owner: nn.Module) -> bool:
        """Whether an owner's table was dropped and is not there to come back."""
        return self._dropped(owner).get(self.table, self) is None

    def forget(self, owner: nn.Module) -> None:
        """Let go of a dropped table that was kept for the way back: from now on there is none."""
        owner.__dict__[DROPPED] = {**self._dropped(owner), self.table: None}

    def restore(self, owner: nn.Module, like: Tensor) -> None:
        """Put back a table that was dropped, if it was.

        Args:
            owner: changed in place.
            like: a tensor whose dtype and device the table takes.
        """
        dropped = self._dropped(owner)
        if self.table in dropped:
            self._put_back(owner, dropped.pop(self.table).to(like))
            owner.__dict__[DROPPED] = dropped
            if not dropped:
                del owner.__dict__[DROPPED]

    def _dropped(self, owner: nn.Module) -> dict[str, Any]:
        """The dropped tables of an owner by their names; None for one that is not there to come back."""
        mark = owner.__dict__.get(DROPPED, {})
        if isinstance(mark, tuple):
            return {self.table: mark[0] if mark else None}
        return dict(mark)


@dataclass(frozen=True)
class AbsoluteEmbedding(NativeTable):
    """One vector per position, added to the input.

    Attributes:
        first: the row of position 0, where there are others before it: a number, an attribute of the table, or a
            function of the table.
        length: how many positions a model has: an attribute of its config, or a function of its config.
    """

    first: int | str | Callable[[Any], int] = 0
    length: str | Callable[[Any], int] = "max_position_embeddings"

    words = "absolute positions"
    bounded = True

    def trained_length(self, config: Any) -> int:
        """How many positions a model with a config has.

        Raises:
            FamilyError: if it is no such number.
        """
        length = self._value("length", config)
        if not _is_whole(length) or length < 1:
            raise self._wrong("length", config, f"is {length!r}, which must be a whole number of at least 1")
        return length

    def rows(self, owner: nn.Module) -> Tensor | None:
        """What a model adds for each position, ``[positions, dim]``: a gated table times its gate; None if dropped."""
        table: Any = self.table_of(owner)
        if not isinstance(table, nn.Embedding):
            return None
        rows = table.weight[self._first(table) :].detach()
        gate = getattr(table, "relpos_gate", None)
        return rows if gate is None else rows * gate.weight.detach()

    def change(self, owner: nn.Module, choice: str, keep_dropped: bool) -> None:
        """Make of an owner's stock table what was chosen; one that stays then knows its bound."""
        table: Any = self.table_of(owner)
        super().change(owner, choice, keep_dropped)
        first = self._first(table)
        if choice != "drop" and first:
            table.relpos_first = first

    def check(self, owner: nn.Module) -> None:
        """Compare the first row with the table.

        Raises:
            FamilyError: if the table has no such row.
        """
        self._first(self.table_of(owner))

    def _first(self, table: Any) -> int:
        first = self.first if isinstance(self.first, int) else self._value("first", table)
        if not _is_whole(first) or not 0 <= first < table.num_embeddings:
            rows = f"a row of the table, 0 to {table.num_embeddings - 1}"
            raise self._wrong("first", table, f"is {first!r}, which must be {rows}")
        return first

    def _value(self, what: str, of: Any) -> Any:
        """What is said about a table or a config, looked up on it."""
        given = getattr(self, what)
        try:
            return given(of) if callable(given) else getattr(of, given)
        except Exception as error:
            raise self._wrong(what, of, f"could not be found: {type(error).__name__}: {error}") from error

    def _wrong(self, what: str, of: Any, said: str) -> FamilyError:
        return FamilyError(
            f"The family's native positions {self.owner}.{self.table} have {getattr(self, what)!r} for their "
            f"`{what}`, which, asked of {type(of).__name__}, {said}. Give a number, the name of an attribute, or a "
            "function."
        )

    def _drop(self, owner: nn.Module) -> None:
        setattr(owner, self.table, DroppedTable())


@dataclass(frozen=True)
class ScoreBias(NativeTable):
    """A bias per head on the scores, looked up by distance, in some layers or all.

    Attributes:
        flag: the owner's attribute that says whether it has a table.
    """

    flag: str

    words = "the bias it was pretrained with"
    bounded = False

    def check(self, owner: nn.Module) -> None:
        """Look for the flag, without which a dropped table would be looked up all the same.

        Raises:
            FamilyError: if the owner has no such attribute.
        """
        if not hasattr(owner, self.flag):
            raise FamilyError(
                f"The family's native positions {self.owner}.{self.table} have {self.flag!r} for their `flag`, but "
                f"{type(owner).__name__} has no such attribute; it has {', '.join(attributes(owner))}."
            )

    def _drop(self, owner: nn.Module) -> None:
        delattr(owner, self.table)
        setattr(owner, self.flag, False)

    def _put_back(self, owner: nn.Module, table: nn.Module) -> None:
        super()._put_back(owner, table)
        setattr(owner, self.flag, True)


def attributes(value: object) -> list[str]:
    """The public attributes that something has itself, for messages."""
    return sorted(name for name in vars(value) if not name.startswith("_"))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
