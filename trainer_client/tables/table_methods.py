"""The methods of a client that make tables and look up in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ps_wire.errors import InvalidArgumentError
from trainer_client.pending import DEFAULT, Pending
from trainer_client.tables.look_ups import look_up, query_of
from trainer_client.tables.move_methods import MoveMethods
from trainer_client.tables.table import Table
from trainer_client.tables.table_spec import TableSpec

if TYPE_CHECKING:
    import asyncio

    import torch

    from ps_wire.compression.choice import Compress
    from ps_wire.policies import Policy
    from ps_wire.tables.lifecycle import Admission, Eviction
    from ps_wire.tables.options import Initialisation, RowGroup, RowOptimizer
    from trainer_client.optimizers.creation import NonFinite
    from trainer_client.tables.creation import Tables


class TableMethods(MoveMethods):
    """What a client does with tables."""

    _tables: Tables
    _loop: asyncio.AbstractEventLoop

    def table(
        self,
        name: str,
        dim: int | None = None,
        optimizer: RowOptimizer | None = None,
        *,
        rows: int | None = None,
        owners: Sequence[str] | None = None,
        init: Initialisation | None = None,
        dtype: torch.dtype | None = None,
        seed: int | None = None,
        max_rows: int | None = None,
        groups: Sequence[RowGroup] | None = None,
        admit: Admission | None = None,
        evict: Eviction | None = None,
        policy: Policy | None = None,
        non_finite: NonFinite | None = None,
        replace: bool = False,
        compress: Compress = None,
    ) -> Pending[Table]:
        """Makes a table of embeddings over several owners, or attaches to it.

        Its ids are divided into 16,384 slots by a hash, and each owner has as many slots as every other. The values
        that a row begins with depend on the seed and its id alone, so they are the same on any owner.

        Args:
            name: Its name. Later calls with the same arguments attach to it, and so do those with the name alone.
            dim: Numbers in a row; None to attach to a table that exists. Arguments that are given besides have to be
                those of the table then, and what is left out is as it was made.
            optimizer: How rows with a gradient are updated: `SGD`, `Adagrad`, `RowWiseAdagrad`, `LazyAdam`,
                `PartialRowWiseAdam` or `FTRL` of `trainer_client`. None for SGD with lr=0.01.
            rows: Number of rows, for ids from 0 to `rows - 1`. None for a table that takes any id, of either sign, and
                whose rows come into being when they are first looked up in a pass.
            owners: Names of its owners, in any order; None for all owners of this client, `ps.owners`. Where these are
                the owners of a group, None is for those that the table has, if it exists, and a named one may have
                joined since.
            init: How rows begin: `Normal`, `Uniform`, `Zeros` or `Constant`. None for `Normal(0.01)`.
            dtype: float32, float16 or bfloat16; None for float32.
            seed: Seed of the values that rows begin with; None for 0.
            max_rows: Most rows on each owner; None for as many as fit into its memory.
            groups: Learning rates and weight decays for ranges of ids, in place of the optimizer's; in any order.
            admit: Which new ids get a row: `AfterSightings` or `WithProbability`; None for all. The others read a row
                of equal values, and their gradients are dropped. Not with `rows`.
            evict: When rows are removed: an `Eviction`; None for never. Not with `rows`.
            policy: When gradients count, as for `optimizer`.
            non_finite: Whether its optimizer refuses gradients with NaN or infinity: "refuse", which is the default, or
                "apply".
            replace: Whether it takes the place of a table of that name that was made with other arguments. That is
                removed from all owners of this client, with its rows, and handles to it become stale. With the
                same it changes nothing: the call attaches, and rows stay.
            compress: Codecs for the gradients that this client sends of its rows: `BF16`, `FP16`, `Int8`, `Zstd` or one
                of your own; or a mapping of patterns for names of tables to codecs; see `Choice`. Other clients may
                choose others.

        Raises:
            NameConflictError: A table of that name exists with other arguments, which the message names, or something
                else has that name.
            UnknownNameError: The table does not exist, and `dim` was not given; or the client is not connected to one
                of its owners.
            InvalidArgumentError: An argument does not fit.
            PsError: An owner failed. What others have made was removed again.
        """
        wanted = TableSpec(
            *(name, dim, rows, dtype, init, optimizer, seed, max_rows, groups, owners, admit, evict, non_finite),
            *(policy, replace),
        )
        wanted.check()
        return self._tables.table(wanted, compress)

    def look_up(
        self, wanted: Mapping[Table, Any], *, timeout: float | None = DEFAULT
    ) -> Pending[dict[Table, torch.Tensor]]:
        """Looks up in several tables, with one request to each owner. Inside a context it is recorded.

        Args:
            wanted: For each table ids, to get the row of each, or for bags a tuple `(ids, offsets)` or
                `(ids, offsets, mode)`, or a dictionary of the arguments of `Table.bag`.
            timeout: Seconds this may take; None is no limit.

        Returns:
            The rows or pooled rows, by table.

        Raises:
            InvalidArgumentError: An argument does not fit; nothing was sent.
            TooLargeError, StaleHandleError: As for `Table`.
        """
        if not isinstance(wanted, Mapping) or not all(isinstance(each, Table) for each in wanted):
            raise InvalidArgumentError(
                f"look_up() takes a dictionary with the ids for each table, {{users: ids}}, not {wanted!r}"
            )
        if not wanted:
            raise InvalidArgumentError("look_up() needs at least one table")
        queries, tables = [query_of(table, what) for table, what in wanted.items()], list(wanted)
        return look_up(self._loop, queries, timeout, lambda results: dict(zip(tables, results, strict=True)))
