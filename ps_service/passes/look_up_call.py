"""What a running call keeps of the tables that it looks up in."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from ps_service.hosting.leaves import Leaf
from ps_service.hosting.references import Borrower
from ps_wire.errors import InvalidArgumentError, RowsMovedError
from ps_wire.tables.routing import CLOSED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ps_service.hosting.objects import HostedObject
    from ps_service.passes.pass_context import PassContext
    from ps_service.tables.stand_in import AllRows


class LookUpCall(Borrower):
    """A call whose code may look up in tables of this owner. If it is recorded, it belongs to the `context`, and the
    parameters of these `tables` are among its `leaves`, each with the number of `steps` when it first looked up there.
    The `marks` of the tables are from then. With a log, `uses_rows` notes that look-ups may add rows."""

    leaves: Sequence[Leaf]
    steps: Sequence[int]
    tables: Sequence[AllRows] = ()
    marks: Sequence[int] = ()
    context: PassContext | None = None
    uses_rows: Callable[[HostedObject], None] | None = None
    _thread: int

    @property
    def records_look_ups(self) -> bool:
        return self.context is not None and torch.is_grad_enabled()

    def looks_up(self, table: HostedObject, mark: int, ids: torch.Tensor) -> bool:
        context, value = self.context, table.value
        if context is None or not self.records_look_ups:
            return False
        if self._thread != threading.get_ident():
            raise InvalidArgumentError(
                f"{table} can be looked up in only in the thread of the call: another thread has no part in its pass"
            )
        parameter = value.parameter
        is_known = any(each is parameter for each in self.tables)
        goes_on = is_known or (value.mark == CLOSED and context.uses(parameter))
        if not is_known:
            # Before the mark is read: who closes the table does both in the other order.
            context.looks_up(parameter)
        try:
            if mark != value.mark:
                value.examine(mark, ids, goes_on)
        except RowsMovedError:
            if not is_known:
                context.has_looked_up([parameter])
            raise
        if not is_known:
            if self.uses_rows is not None:
                self.uses_rows(table)
            self.tables, self.marks = [*self.tables, parameter], [*self.marks, value.mark]
            # As of a look-up by a trainer, without a handle; see `table_calls`.
            self.leaves = [*self.leaves, Leaf(None, parameter, parameter)]
            self.steps = [*self.steps, table.parameter_states[0].steps]
        return True

    def end_look_ups(self) -> bool:
        """Ends the look-ups of the code. Returns whether a backward of the code itself has reached their rows, whose
        gradients nobody would step with."""
        assert self.context is not None, "it has tables"
        self.context.has_looked_up(self.tables)
        reached = [each for each in self.tables if each.grad is not None]
        for each in reached:
            each.grad = None
        return bool(reached)

    def check_rows(self) -> None:
        """Raises `RowsMovedError` if rows of the tables have moved, or were about to, since the call looked up."""
        for parameter, mark in zip(self.tables, self.marks, strict=True):
            if mark not in (parameter.table.mark, CLOSED):
                raise RowsMovedError(
                    f"rows of {parameter.table} have moved to another owner before the call that looked up had its "
                    "result: repeat the pass"
                )
