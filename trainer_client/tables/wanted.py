"""The table that a program asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ps_wire.tables import options

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

    def settings(self, owners: Sequence[str]) -> dict[str, Any]:
        """As the arguments of the constructor on each of these owners."""
        own = self._asdict()
        own["init"], own["optimizer"] = options.to_plain(self.init), options.to_plain(self.optimizer)
        own["groups"], own["owners"] = [options.to_plain(each) for each in self.groups], list(owners)
        return own
