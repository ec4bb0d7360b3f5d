"""Tables as hosted code has them: it looks up in them, as a part of the passes of its callers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

import torch

from ps_service.access.namespaces import within
from ps_service.hosting.references import binder
from ps_service.parameters.locks import WouldBlock
from ps_wire.codec import dtypes
from ps_wire.errors import ForeignHandleError, InvalidArgumentError, PsError, RowsMovedError, UnknownNameError
from ps_wire.runtime.scopes import waiting
from ps_wire.tables.queries import Asked, Described, Query, bags_query, rows_query
from ps_wire.tables.routing import CLOSED, LONGEST_CLOSED, Routing
from ps_wire.v1.values_pb2 import TableName

if TYPE_CHECKING:
    from ps_service.group.peers import TableElsewhere
    from ps_service.hosting.objects import HostedObject
    from ps_service.passes.contexts import PassHost
    from ps_service.tables.pinned_part import PinnedPart

D = TypeVar("D", bound=Described)

_AGAIN_SECONDS: Final = 0.002
"""Seconds after which a table is looked up in again that is closed for a moment, because rows of it move."""


class _Known(NamedTuple):
    """A table as look-ups here need it."""

    name: str
    dim: int
    dtype: torch.dtype
    rows: int | None
    routing: Routing


class TableRef:
    """A table among the arguments of a constructor or a call, as hosted code gets it. It may be kept.

        @hosted
        class Recommender(nn.Module):
            def __init__(self, items: TableRef) -> None:
                super().__init__()
                self.items, self.head = items, nn.Linear(items.dim, 1)

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                return self.head(self.items(ids))

    In a recorded call, look-ups belong to the pass, as if the trainer had looked up: gradients of rows wait on the
    owners of the rows for a step of the table's optimizer. In other calls, and without grad, they make no rows. Rows on
    this owner are read without a request; other owners are asked as by other nested calls.

    It stands for the table of its name: rows may move to other owners, and owners may start again.

    Attributes:
        name: The name of the table.
        dim: Numbers in a row.
        dtype: Their dtype.
        rows: Number of rows of a table of fixed size; None for one that takes any id.
    """

    instead_of_sending: Final = "hosted code cannot return a table; the trainer asks for it by its name, ps.table(…)"

    def __init__(
        self,
        engine: PassHost,
        name: str,
        dim: int,
        dtype: torch.dtype,
        rows: int | None = None,
        owners: Sequence[str] = (),
    ) -> None:
        self.name: Final = within(name)
        self.dim: Final = dim
        self.dtype: Final = dtype
        self.rows: Final = rows
        self._engine = engine
        self._full_name = name
        self._owners = owners
        self._elsewhere: TableElsewhere | None = None

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids. Each distinct id is looked up once.

        Args:
            ids: int64 or int32 of any shape.

        Returns:
            The rows, [*ids.shape, dim], on the device of the ids.

        Raises:
            InvalidArgumentError: The ids have another dtype, or are outside of a table of fixed size; or this is not
                the thread of a call that runs.
            TooLargeError: An owner would have more rows than it allows.
            UnknownNameError: The table was deleted.
        """
        return self._looked_up(ids, lambda table: rows_query(table, ids))

    def bag(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        mode: str = "sum",
        per_sample_weights: torch.Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> torch.Tensor:
        """The pooled rows of bags of ids, as `torch.nn.functional.embedding_bag` computes them.

        Args:
            ids: int64 or int32, [n] with `offsets`, or [bags, size].
            offsets: Where each bag begins, int64 or int32 [bags].
            mode: "sum", "mean" or "max". That of an empty bag is zero.
            per_sample_weights: Floating point numbers in the shape of the ids, with "sum" only.
            include_last_offset: Whether `offsets` has the end of the last bag, too.
            padding_idx: An id that counts for nothing.

        Returns:
            float32 [bags, dim], on the device of the ids.

        Raises:
            InvalidArgumentError: Ids, offsets or weights do not fit.
            TooLargeError, UnknownNameError: As for rows.
        """
        more = offsets, mode, per_sample_weights, include_last_offset, padding_idx
        return self._looked_up(ids, lambda table: bags_query(table, ids, *more))

    def check(self) -> None:
        """Raises `InvalidArgumentError` if the table has other rows than was said, and `ForeignHandleError` or
        `UnknownNameError` if it has rows that cannot be reached from here."""
        here = self._here()
        if self._is_elsewhere(here) and not self._engine.membership.joined:
            others = ", ".join(each for each in self._owners_of(here) if each != self._engine.name)
            raise ForeignHandleError(
                f"the table {self.name!r} has rows on {others}, which cannot be found from owner "
                f"{self._engine.name!r}: start the owners with --directory"
            )
        if here is None and not self._is_elsewhere(here):
            raise self._gone()

    def _owners_of(self, here: HostedObject | None) -> Sequence[str]:
        return self._owners if here is None else here.value.routing.owners

    def _is_elsewhere(self, here: HostedObject | None) -> bool:
        return any(each != self._engine.name for each in self._owners_of(here))

    def _here(self) -> HostedObject | None:
        """The rows of this owner, if it has a part of the table."""
        found = self._engine.registry.under(self._full_name)
        if found is None:
            return None
        if not found.is_table:
            raise InvalidArgumentError(f"{found}, in which hosted code looks up, is no table any more")
        self._check_settings(found.value.settings)
        return found

    def _check_settings(self, settings: Any) -> None:
        now, was = (settings["dim"], settings["dtype"], settings["rows"]), (self.dim, self.dtype, self.rows)
        if now != was:
            raise InvalidArgumentError(
                f"the table {self.name!r} has dim, dtype and rows of {now} now, and had {was} when hosted code got it: "
                "make the module again with the handle of the table"
            )

    def _looked_up(self, ids: torch.Tensor, make: Callable[[Described], Query[Any]]) -> torch.Tensor:
        if self._engine.parameter_locks.this_thread.nonblocking:
            raise WouldBlock  # a call that begins again in a thread must not have made rows
        end = 0.0
        while True:
            try:
                found = self._look_up(make)
                return found if found.device == ids.device else found.to(ids.device)
            except RowsMovedError:
                now = time.monotonic()
                end = end or now + LONGEST_CLOSED
                if now >= end:
                    raise
                with waiting:
                    time.sleep(_AGAIN_SECONDS)

    def _look_up(self, make: Callable[[Described], Query[Any]]) -> torch.Tensor:
        engine, call, here = self._engine, binder.get(), self._here()
        records = call is not None and call.records_look_ups
        # Code that has opened a pass of its own looks up as any other program.
        is_own = not records and torch.is_grad_enabled() and engine.membership.peers.in_pass()
        if call is None and not is_own:
            # Nobody could tell to which pass it belongs, if to any; an owner that starts again reaches no others yet.
            raise InvalidArgumentError(
                f"hosted code can look up in the table {self.name!r} only in the thread of a call that runs: not in a "
                "constructor, in threads or callbacks of its own, or again in a backward (torch.utils.checkpoint)"
            )
        if here is not None and here.value.routing.owners == (engine.name,) and not is_own:
            query = make(_Known(self.name, self.dim, self.dtype, self.rows, here.value.routing))
            answers = [rows_here(here, query, each) for each in query.asked.values()]
            with torch.set_grad_enabled(records):
                return query.finish(answers)
        self.check()
        there = self._elsewhere
        if there is None:
            there = engine.membership.peers.table(self._full_name, self._owners_of(here))
            self._check_settings(there.settings)
            self._elsewhere = there
        try:
            return there.look_up(make, engine.name, None if here is None or is_own else partial(rows_here, here))
        except PsError as error:
            if not isinstance(error, RowsMovedError) or here is None or here.value.mark != CLOSED:
                # It may have been made again, its owners may have started again, or rows of this one have moved.
                self._elsewhere = None
            raise

    def _gone(self) -> UnknownNameError:
        return UnknownNameError(
            f"the table {self.name!r}, in which hosted code looks up, is gone: it was deleted. Make it again with "
            f"ps.table({self.name!r}, dim={self.dim}, …), or make the module again with another table"
        )

    def __ps_table__(self) -> TableName:
        here = self._here()
        return TableName(
            name=self._full_name,
            dim=self.dim,
            dtype=dtypes.to_wire(self.dtype),
            rows=self.rows,
            owners=self._owners_of(here),
        )

    @property
    def full_name(self) -> str:
        """The name with its namespace, as the registry has it."""
        return self._full_name

    def __deepcopy__(self, memo: dict[int, Any]) -> TableRef:
        memo[id(self)] = self  # so that who copies something finds the tables in it
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a table of hosted code cannot be pickled")

    def __repr__(self) -> str:
        return f"<TableRef {self.name!r}, rows of {self.dim} {self.dtype}>"


class PinnedTableRef:
    """A table of a snapshot, as the modules in that have it, in the place of a `TableRef`: it is only read.

    Attributes are those of `TableRef`.
    """

    def __init__(self, table: TableRef, owner: str, part: PinnedPart) -> None:
        self.name: Final = table.name
        self.dim: Final = table.dim
        self.dtype: Final = table.dtype
        self.rows: Final = table.rows
        self._routing: Final = Routing.even([owner])
        self._part: Final = part

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """As `TableRef`, with the rows as they were."""
        return self._looked_up(ids, lambda table: rows_query(table, ids))

    def bag(self, ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As `TableRef.bag`, with the rows as they were."""
        return self._looked_up(ids, lambda table: bags_query(table, ids, *args, **kwargs))

    def _looked_up(self, ids: torch.Tensor, make: Callable[[Described], Query[Any]]) -> torch.Tensor:
        query = make(_Known(self.name, self.dim, self.dtype, self.rows, self._routing))
        with torch.no_grad():
            found = query.finish([self._part.look_up(each) for each in query.asked.values()])
        return found.to(ids.device)

    def __deepcopy__(self, memo: object) -> PinnedTableRef:
        return self

    def __repr__(self) -> str:
        return f"<PinnedTableRef {self.name!r}, rows of {self.dim} {self.dtype}>"


def rows_here(table: HostedObject, query: Query[Any], asked: Asked) -> torch.Tensor:
    """What is asked of the rows of a table on this owner, as a part of the running call. Raises `RowsMovedError`."""
    call, value = binder.get(), table.value
    mark, before = query.routing.marks.get(table.ref.owner, 0), value.mark
    ids, offsets, weights, given = asked
    given = len(ids) if given is None else given
    if call is not None and call.looks_up(table, mark, ids):
        found: torch.Tensor = value.found(ids, offsets, weights, given, recorded=True)
        return found
    if mark != before:
        value.examine(mark, ids)
    with torch.no_grad():
        found = value.found(ids, offsets, weights, given, recorded=False)
    if value.mark != before:
        value.examine(before, ids)
    return found
