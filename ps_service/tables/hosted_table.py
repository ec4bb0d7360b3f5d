"""The rows of a table that one owner hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.tables.numbered import NumberedShard
from ps_service.tables.stand_in import AllRows, LookUp, Pool, RowsOfTable
from ps_wire.decorators import hosted, remote
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables import options
from ps_wire.tables.routing import Routing
from ps_wire.tables.sums import grouped, sum_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_NAME: Final = 256
"""Longest name of a table."""


class Wanted:
    """What is looked up in one table."""

    def __init__(self, table: HostedTable, part: Any) -> None:
        if not isinstance(part, tuple) or len(part) != 4:
            raise InvalidArgumentError("a part of a look-up is a tuple of table, ids, offsets and weights")
        other, ids, offsets, weights = part
        self.table = table if other is None else other.local_value()
        if not isinstance(self.table, HostedTable):
            raise InvalidArgumentError("only tables can be looked up in")
        if not isinstance(ids, torch.Tensor) or not isinstance(offsets, torch.Tensor | None):
            raise InvalidArgumentError("ids and offsets are tensors")
        self.ids = ids
        self.offsets = None if offsets is None else self.table.shard.checked_bags(ids, offsets)
        if weights is not None and (
            offsets is None
            or not isinstance(weights, torch.Tensor)
            or weights.shape != ids.shape
            or not weights.is_floating_point()
        ):
            raise InvalidArgumentError("weights are floating point numbers, one for each id of bags")
        self.weights: torch.Tensor | None = weights


@hosted
class HostedTable(RowsOfTable):
    """One owner's rows of a table, and their optimizer. Arguments are those of `trainer_client.Client.table`.

    Attributes:
        settings: What it was made with, the same on all of its owners.
        routing: Which owner has which rows.
        shard: The rows.
        parameter: Stands for them in torch's graph.

    Raises:
        InvalidArgumentError: A setting does not fit.
    """

    def __init__(
        self,
        *,
        name: str,
        dim: int,
        rows: int | None,
        dtype: torch.dtype,
        init: Mapping[str, Any],
        optimizer: Mapping[str, Any],
        seed: int,
        max_rows: int | None,
        groups: Sequence[Any],
        owners: Sequence[str],
    ) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME:
            raise InvalidArgumentError(f"the name of a table is a text of at most {MOST_NAME} characters")
        if not isinstance(seed, int) or isinstance(seed, bool) or not isinstance(dtype, torch.dtype):
            raise InvalidArgumentError("the seed of a table is a whole number, and its dtype a dtype of torch")
        self.settings: Final[dict[str, Any]] = {
            "name": name,
            "dim": dim,
            "rows": rows,
            "dtype": dtype,
            "init": init,
            "optimizer": optimizer,
            "seed": seed,
            "max_rows": max_rows,
            "groups": list(groups),
            "owners": list(owners),
        }
        self.routing = Routing.even(owners)
        self.shard: Final = NumberedShard(
            dim,
            _option(optimizer, options.RowOptimizer, "optimizer"),
            _option(init, options.Initialisation, "init"),
            dtype,
            rows=rows,
            seed=seed,
            max_rows=max_rows,
            groups=[_option(each, options.RowGroup, "a group") for each in groups],
            refuse_non_finite=False,  # the optimizer says whether they are
        )
        self.dim = dim
        self.parameter = AllRows.of(self, dim)

    @remote
    def look_up(self, parts: Any, recorded: bool = False) -> list[torch.Tensor]:
        """Rows and pooled rows of this table and others.

        Args:
            parts: For each a tuple: a reference to a table, None for this one; ids, int64 [n]; where each bag begins,
                None to get the row of each id; what the rows are multiplied with, None for 1.
            recorded: Whether the results get a history in torch's graph. Missing rows are added then.

        Returns:
            For each part [n, dim] of the table's dtype, or float32 [bags, dim].

        Raises:
            InvalidArgumentError: A part does not fit. No row was added.
            TooLargeError: There would be more rows than a table may have; those of parts before were added.
        """
        if not isinstance(parts, list):
            raise InvalidArgumentError("the parts of a look-up are a list")
        wanted = [Wanted(self, part) for part in parts]
        return [each.table._found(each, recorded) for each in wanted]

    def _found(self, wanted: Wanted, recorded: bool) -> torch.Tensor:
        ids, offsets, weights = wanted.ids, wanted.offsets, wanted.weights
        if not recorded:
            if offsets is None:
                return self.shard.look_up(ids, add=False)
            return self.shard.bag(ids, offsets, "sum", weights, add=False)
        numbers = self.shard.numbers(ids)
        found: torch.Tensor
        if offsets is None:
            found = LookUp.apply(self.parameter, self, numbers)  # type: ignore[no-untyped-call]
        else:
            found = Pool.apply(self.parameter, weights, self, numbers, offsets)  # type: ignore[no-untyped-call]
        return found

    @remote
    def count(self) -> int:
        """Number of rows."""
        return self.shard.size

    @property
    def kind(self) -> str:
        return self.shard.optimizer.kind

    @property
    def size(self) -> int:
        return self.shard.size

    @property
    def nbytes(self) -> int:
        return self.shard.memory

    @property
    def updates(self) -> int:
        return self.shard.updates

    def read(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.shard.read(numbers)

    def pool(self, numbers: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        return self.shard.pool(numbers, offsets, weights)

    @remote
    def describe(self) -> dict[str, Any]:
        """What it was made with, and which owner has which rows."""
        return {"settings": self.settings, "routing": self.routing.to_plain()}

    def apply(self, gradient: torch.Tensor, options: Mapping[str, Any]) -> None:
        now = self.shard.optimizer
        if changed := {name: value for name, value in options.items() if getattr(now, name) != value}:
            self.shard.set_options(**changed)
        numbers, values = gradient._indices()[0], gradient._values()
        if not gradient.is_coalesced():
            groups = grouped(numbers)
            if not groups.are_different:
                numbers, values = groups.targets, sum_by(groups, values)
        if len(numbers):
            self.shard.update(numbers, values)

    def state_dict(self) -> dict[str, Any]:
        """All rows, in blocks, and which owner has which."""
        return {"routing": self.routing.to_plain(), "blocks": self.shard.blocks()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes the rows of a checkpoint."""
        self.shard.load(state["blocks"])
        self.routing = Routing.from_plain(state["routing"])

    def __str__(self) -> str:
        return f"table {self.settings['name']!r}"


def _option(plain: Any, kinds: Any, what: str) -> Any:
    found = options.from_plain(plain)
    if not isinstance(found, kinds):
        raise InvalidArgumentError(f"{what} of a table is not {found!r}")
    return found
