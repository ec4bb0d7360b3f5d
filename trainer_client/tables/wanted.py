"""The table that a program asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from ps_wire.errors import InvalidArgumentError
from ps_wire.tables import options
from ps_wire.tables.life import Admission, Eviction

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class Wanted(NamedTuple):
    """The table that a program asks for.

    Attributes:
        name: Its name.
        dim: Numbers in a row.
        rows: Number of rows; None for a table that takes any id.
        dtype: Dtype of the rows.
        init: How rows begin.
        optimizer: Which optimizer updates rows.
        seed: Seed of the values that rows begin with.
        max_rows: Most rows on each owner; None for as many as the owner allows.
        groups: Options of the optimizer for ranges of ids.
        owners: Names of its owners, sorted; None for all owners of the client.
        admit: Which new ids get a row; None for all.
        evict: When rows are removed; None for never.
    """

    name: str
    dim: int
    rows: int | None
    dtype: torch.dtype
    init: options.Initialisation
    optimizer: options.RowOptimizer
    seed: int
    max_rows: int | None
    groups: tuple[options.RowGroup, ...]
    owners: tuple[str, ...] | None
    admit: Admission | None = None
    evict: Eviction | None = None

    def settings(self, owners: Sequence[str]) -> dict[str, Any]:
        """As the arguments of the constructor on each of these owners.

        Raises:
            InvalidArgumentError: An option is of another kind, or admission or eviction do not fit.
        """
        own = self._asdict()
        _check("optimizer", self.optimizer, options.RowOptimizer)
        _check("init", self.init, options.Initialisation)
        for group in self.groups:
            if not isinstance(group, options.RowGroup):
                raise InvalidArgumentError(f"groups= has values such as tc.RowGroup(low, high, lr=…), not {group!r}")
        own["init"], own["optimizer"] = options.to_plain(self.init), options.to_plain(self.optimizer)
        if self.admit is not None and not isinstance(self.admit, Admission):
            raise InvalidArgumentError(f"admit= is an AfterSightings or a WithProbability, not {self.admit!r}")
        if self.evict is not None and not isinstance(self.evict, Eviction):
            raise InvalidArgumentError(f"evict= is an Eviction, not {self.evict!r}")
        if self.rows is not None and (self.admit is not None or self.evict is not None):
            raise InvalidArgumentError("ids are admitted and rows are evicted in tables that grow, without rows=")
        for name, option in (("admit", self.admit), ("evict", self.evict)):
            own[name] = None if option is None else options.to_plain(option)
        own["groups"], own["owners"] = [options.to_plain(each) for each in self.groups], list(owners)
        return own


def _check(name: str, value: Any, kinds: Any) -> None:
    """Raises `InvalidArgumentError` if the value of an option is none of these kinds."""
    if not isinstance(value, kinds):
        known = ", ".join(f"tc.{each.__name__}(…)" for each in get_args(kinds))
        raise InvalidArgumentError(f"{name}= is one of {known}, not {value!r}")
