"""Plans tables: what each owner will hold of them, and whether it fits into its memory."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from ps_service.tables.rules import make_rule
from ps_service.tables.seen import seen_bytes
from ps_service.tables.storage import MAP_BYTES
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.routing import SLOTS, Routing

if TYPE_CHECKING:
    from ps_wire.tables.lifecycle import Eviction
    from ps_wire.tables.options import RowOptimizer

DEVIATIONS: Final = 4.0
"""Owners get a share of the slots. The hash of the ids decides how many rows that is: it is planned for this many
standard deviations more than the mean."""


class PlannedTable(NamedTuple):
    """A table, and the names of its owners; none stand for all."""

    name: str
    rows: int
    dim: int
    optimizer: RowOptimizer
    dtype: torch.dtype = torch.float32
    owners: tuple[str, ...] = ()
    evict: Eviction | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, with what the optimizer, the map of ids and eviction keep for it."""
        widths = sum(make_rule(self.optimizer, self.dim).widths.values())
        # Rows in 16 bits count their updates, for stochastic rounding.
        widths += self.dtype != torch.float32
        evicting = 0 if self.evict is None else seen_bytes(self.evict)
        return self.dim * self.dtype.itemsize + 4 * widths + MAP_BYTES + evicting


class Part(NamedTuple):
    """How many of the 16,384 slots of a table one owner holds, the most rows to expect, and their bytes, with what the
    optimizer, the map of ids and eviction keep."""

    table: str
    owner: str
    slots: int
    rows: int
    nbytes: int


class Plan(NamedTuple):
    """What each owner holds of each table, and the bytes that each owner has for tables."""

    parts: list[Part]
    budgets: dict[str, int]

    @property
    def used(self) -> dict[str, int]:
        """Bytes of all tables on each owner."""
        bytes_of = dict.fromkeys(self.budgets, 0)
        for part in self.parts:
            bytes_of[part.owner] += part.nbytes
        return bytes_of

    @property
    def fits(self) -> bool:
        """Whether every owner has the bytes that it needs."""
        return all(nbytes <= self.budgets[owner] for owner, nbytes in self.used.items())


def plan(tables: Sequence[PlannedTable], budgets: Mapping[str, int]) -> Plan:
    """Divides the slots of each table evenly among its owners, as new tables do. `budgets` has the bytes of each owner.
    Raises `InvalidArgumentError` if a table names an owner that is not among them, or there is no owner."""
    if not budgets:
        raise InvalidArgumentError("a plan needs at least one owner")
    parts = []
    for table in tables:
        if unknown := set(table.owners) - budgets.keys():
            raise InvalidArgumentError(
                f"table {table.name!r} is for {sorted(unknown)[0]!r}, which is not an owner here"
            )
        routing = Routing.even(sorted(set(table.owners or budgets)))
        counts = routing.of_slot.bincount(minlength=len(routing.owners)).tolist()
        for owner, slots in zip(routing.owners, counts, strict=True):
            rows = _most_rows(table.rows, slots)
            parts.append(Part(table.name, owner, slots, rows, rows * table.row_bytes))
    return Plan(parts, dict(budgets))


def enough_owners(tables: Sequence[PlannedTable], budget: int) -> int:
    """The least number of owners with that many bytes each that can hold the tables, whatever owners these name; 0 if
    no number can."""

    def fit(owners: int) -> bool:
        slots = math.ceil(SLOTS / owners)
        return sum(_most_rows(table.rows, slots) * table.row_bytes for table in tables) <= budget

    numbers = range(1, SLOTS + 1)
    enough = bisect_left(numbers, True, key=fit)
    return numbers[enough] if enough < len(numbers) else 0


def _most_rows(rows: int, slots: int) -> int:
    share = slots / SLOTS
    spread = math.sqrt(rows * share * (1 - share))
    return min(rows, math.ceil(rows * share + DEVIATIONS * spread))
