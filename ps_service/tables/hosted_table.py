"""The rows of a table that one owner hosts."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.tables.kernels import Grouped
from ps_service.tables.keyed import KeyedShard
from ps_service.tables.restores import Restores
from ps_service.tables.row_gradients import UnsummedGradient
from ps_service.tables.stand_in import AllRows, LookUp, Pool, RowsOfTable, summed_rows
from ps_wire.decorators import hosted, remote
from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError
from ps_wire.tables import life, options
from ps_wire.tables.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ps_service.tables.budget import TableBudget
    from ps_service.tables.statistics import Statistics

MOST_NAME: Final = 256
"""Longest name of a table."""

TURN_ROWS: Final = 1 << 14
"""Rows that are looked at in one turn."""

MOST_GIVEN: Final = 1 << 40
"""More ids than one look-up can have."""

PIECE_BYTES: Final = 4 << 20
"""About the most bytes of rows that are read at once."""


class Wanted:
    """What is looked up in one table."""

    def __init__(self, table: HostedTable, part: Any) -> None:
        if not isinstance(part, tuple) or len(part) not in (4, 5):
            raise InvalidArgumentError("a part of a look-up is a tuple of table, ids, offsets and weights")
        other, ids, offsets, weights, *given = part
        self.table = table if other is None else other.local_value()
        if not isinstance(self.table, HostedTable):
            raise InvalidArgumentError("only tables can be looked up in")
        if not isinstance(ids, torch.Tensor) or not isinstance(offsets, torch.Tensor | None):
            raise InvalidArgumentError("ids and offsets are tensors")
        self.ids = self.table.shard.checked_ids(ids)
        self.offsets = None if offsets is None else self.table.shard.checked_bags(ids, offsets)
        if weights is not None and (
            offsets is None
            or not isinstance(weights, torch.Tensor)
            or weights.shape != ids.shape
            or not weights.is_floating_point()
        ):
            raise InvalidArgumentError("weights are floating point numbers, one for each id of bags")
        self.weights: torch.Tensor | None = weights
        # It is counted, and nothing else.
        self.given = given[0] if given else len(ids)
        if (offsets is not None and given) or type(self.given) is not int or not len(ids) <= self.given < MOST_GIVEN:
            raise InvalidArgumentError("what different ids were made of is a number of ids, at least theirs")


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
        admit: Mapping[str, Any] | None = None,
        evict: Mapping[str, Any] | None = None,
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
            "admit": admit,
            "evict": evict,
        }
        self.routing = Routing.even(owners)
        self.restores: Final = Restores(f"table {name!r}")
        eviction = None if evict is None else _option(evict, life.Eviction, "evict")
        self.shard: Final = KeyedShard(
            dim,
            _option(optimizer, options.RowOptimizer, "optimizer"),
            _option(init, options.Initialisation, "init"),
            dtype,
            rows=rows,
            seed=seed,
            max_rows=max_rows,
            groups=[_option(each, options.RowGroup, "a group") for each in groups],
            refuse_non_finite=False,  # the optimizer says whether they are
            admission=None if admit is None else _option(admit, life.Admission, "admit"),
            eviction=eviction,
            owners=len(owners),
        )
        self.eviction: Final[life.Eviction | None] = eviction
        self.ttl = None if eviction is None else eviction.ttl
        self.dim = dim
        self.backups = ()
        self.parameter = AllRows.of(self, dim)

    @remote
    def look_up(self, parts: Any, recorded: bool = False) -> list[torch.Tensor]:
        """Rows and pooled rows of this table and others.

        Args:
            parts: For each a tuple: a reference to a table, None for this one; ids, int64 [n]; where each bag begins,
                None to get the row of each id; what the rows are multiplied with, None for 1; and for rows, if ids were
                left out that are there twice, how many there were.
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
        found: torch.Tensor
        if offsets is None:
            found = LookUp.apply(self.parameter, self, ids, wanted.given)  # type: ignore[no-untyped-call]
        else:
            found = Pool.apply(self.parameter, weights, self, ids, offsets)  # type: ignore[no-untyped-call]
        return found

    @remote
    def count(self) -> int:
        """Number of rows."""
        return self.shard.size

    def count_in(self, budget: TableBudget) -> None:
        self.shard.count_in(budget, str(self))

    def turns(self, expire: bool) -> Iterator[None]:
        return self.shard.turns(TURN_ROWS, expire)

    @property
    def excess(self) -> int:
        return self.shard.excess

    @remote
    def evict(self, share: float | None, dry_run: bool, sample: int) -> tuple[int, torch.Tensor]:
        """Removes rows that have expired, or a part of the rows.

        Args:
            share: None for the rows that have expired, which takes several short turns; or the part that goes.
            dry_run: Whether the rows stay.
            sample: The most ids to return.

        Returns:
            How many rows, and ids of some.

        Raises:
            InvalidArgumentError: The table has no eviction, or no part of it that this needs, or `share` is no part.
        """
        if self.eviction is None:
            raise InvalidArgumentError(f"no rows of {self} are evicted: make it with evict=tc.tables.Eviction(…)")
        if share is None and self.eviction.ttl is None:
            raise InvalidArgumentError(
                f"no rows of {self} expire, because its Eviction has no ttl=: say which part of the rows is to go, "
                "evict(0.1), or make it with evict=tc.tables.Eviction(ttl=…)"
            )
        if share is not None:
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
                raise InvalidArgumentError(f"the share of rows to evict is above 0 and at most 1, not {share!r}")
            gone = self.shard.evict(int(share * self.shard.size), dry_run=dry_run)
            return len(gone), gone[:sample]
        count, begin, named = 0, 0, torch.empty(0, dtype=torch.int64)
        while begin is not None:
            gone, begin = self.shard.expire(begin, TURN_ROWS, dry_run=dry_run)  # type: ignore[assignment]
            count += len(gone)
            named = torch.cat([named, gone[: max(sample - len(named), 0)]])
        return count, named

    @remote
    def begin_restore(self, number: int) -> int:
        """Removes all rows for a restore, and ends one that goes on. Returns its number.

        Args:
            number: The number that another owner has given the restore; 0 to give it one.

        Raises:
            InvalidArgumentError: A later restore has begun; no row was removed.
        """
        return self.restores.begin(number, self.shard.clear)

    @remote
    def put(self, block: dict[str, torch.Tensor], restore: int | None = None) -> int:
        """Puts rows in the place of those that their ids have, or adds them. Returns how many.

        Args:
            block: As `Contents.put` takes it.
            restore: The number of the restore whose rows they are; None for others.

        Raises:
            InvalidArgumentError: It does not fit, an id is there twice, or a later restore has begun. No row has
                changed.
            NonFiniteGradientError: A number is NaN or infinite. No row has changed.
            TooLargeError: There would be more rows than there may be. No row has changed.
        """
        whole = isinstance(block, dict) and {"ids", "values"} <= block.keys()
        if not whole or not all(_is_plain(name, each) for name, each in block.items()):
            raise InvalidArgumentError("rows to put are ids, values and what belongs to them, as tensors by name")
        if not all(bool(each.isfinite().all()) for each in block.values() if each.is_floating_point()):
            raise NonFiniteGradientError(f"a row holds NaN or infinity; {self} was not changed")
        with nullcontext() if restore is None else self.restores.going_on(restore):
            self.shard.load([block], clear=False)
        return len(block["ids"])

    @remote
    def read_block(self, begin: int, state: bool) -> tuple[dict[str, torch.Tensor], int | None]:
        """Copies of some rows; see `Contents.copies`.

        Args:
            begin: Where to begin: 0, or what the call before has returned.
            state: Whether what the optimizer keeps is wanted.

        Returns:
            A block of at most a few MiB, and where to go on; None at the end.
        """
        if isinstance(begin, bool) or not isinstance(begin, int) or begin < 0:
            raise InvalidArgumentError(f"rows are read from a number on that the last call has returned, not {begin!r}")
        block, following = self.shard.contents.copies(begin, max(1, PIECE_BYTES // self.shard.row_bytes))
        if not state:
            block = {name: each for name, each in block.items() if not name.startswith("state.")}
        return block, following

    @remote
    def remove(self, ids: torch.Tensor) -> int:
        """Removes the rows of ids. Returns how many there were.

        Raises:
            InvalidArgumentError: They are no int64 vector.
        """
        if not isinstance(ids, torch.Tensor):
            raise InvalidArgumentError("ids are a tensor")
        return self.shard.remove(ids)

    @remote
    def clear(self) -> None:
        """Removes all rows, and forgets sightings of ids without one."""
        self.shard.clear()

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

    @property
    def statistics(self) -> Statistics:
        return self.shard.statistics

    def rows_of(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.shard.rows_of(ids)

    def pooled_rows_of(
        self, ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None, keep: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        return self.shard.pooled_rows_of(ids, offsets, weights, keep)

    def gradient(
        self,
        keys: torch.Tensor,
        gradients: torch.Tensor,
        offsets: torch.Tensor | None,
        weights: torch.Tensor | None,
        given: int,
    ) -> torch.Tensor:
        return self.shard.gradient(keys, gradients, offsets, weights, given)

    def read(self, keys: torch.Tensor) -> torch.Tensor:
        return self.shard.read(keys)

    @remote
    def describe(self) -> dict[str, Any]:
        """What it was made with, and which owner has which rows."""
        return {"settings": self.settings, "routing": self.routing.to_plain()}

    def changed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those options of the optimizer that differ from what they are now. Raises as `Shard.set_options`."""
        now = self.shard.optimizer
        changed = {name: value for name, value in options.items() if getattr(now, name) != value}
        if changed:
            self.shard.check_options(**changed)
        return changed

    def apply(self, gradient: torch.Tensor, options: Mapping[str, Any]) -> None:
        if changed := self.changed(options):
            self.shard.set_options(**changed)
        grouped = gradient.pending if isinstance(gradient, UnsummedGradient) else None
        if grouped is None:
            grouped = Grouped.of_different(*summed_rows(gradient))
        if len(grouped.ids):
            if self.backups:
                keys = grouped.ids.sort().values
                for each in self.backups:
                    if (backups := each()) is not None:
                        backups.note(keys)
            self.shard.update_grouped(grouped)

    def state_dict(self) -> dict[str, Any]:
        """All rows, in blocks, which owner has which, what admission remembers, and the number of the last restore."""
        return {
            "routing": self.routing.to_plain(),
            "blocks": self.shard.contents.views(),
            "admission": self.shard.contents.admission_state(),
            "restore": self.restores.latest,
        }

    def state_copy(self) -> dict[str, Any]:
        """The same as a copy, block by block: rows may be looked up and added meanwhile, but not updated."""
        return {"routing": self.routing.to_plain(), "blocks": list(self.shard.state())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes the rows of a checkpoint."""
        self.shard.load(state["blocks"])
        if (admission := state.get("admission")) is not None:
            self.shard.contents.load_admission(admission)
        self.routing = Routing.from_plain(state["routing"])
        self.restores.latest = state.get("restore", 0)

    def __str__(self) -> str:
        return f"table {self.settings['name']!r}"


def _is_plain(name: Any, value: Any) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and value.dim() > 0
    )


def _option(plain: Any, kinds: Any, what: str) -> Any:
    found = options.from_plain(plain)
    if not isinstance(found, kinds):
        raise InvalidArgumentError(f"{what} of a table is not {found!r}")
    return found
