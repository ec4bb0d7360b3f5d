"""The part of a pass that hosted code makes on other owners."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import torch

from trainer_client.contexts.context import Context
from trainer_client.graph.current import inside
from trainer_client.graph.running_backward import RunningBackward, first_failure

if TYPE_CHECKING:
    from ps_service.group.nested_pass import Over
    from ps_wire.refs import ContextId
    from trainer_client.contexts.gradients import Reach

_FIRST_CALL: Final = 1 << 32


class _Outer:
    """The call that a thread runs for a pass.

    Args:
        place: The numbers of the calls that it is nested in, and its own number.

    Attributes:
        place: As the argument.
        calls: Number of calls that it has made.
    """

    def __init__(self, place: tuple[int, ...]) -> None:
        self.place = place
        self.calls = 0


_outer: ContextVar[_Outer | None] = ContextVar("trainer_client_outer", default=None)


class NestedContext(Context):
    """The part of another trainer's pass that continues from this process to other owners.

    A call of that trainer brought the id of its context. The calls that hosted code makes for it are recorded under
    the same id, on the sessions of this process.

    Args:
        id: Id of the context.
        loop: The event loop of this process's client.
        reach: Opens the session with an owner.
    """

    joins_any_client = True

    def __init__(self, id: ContextId, loop: asyncio.AbstractEventLoop, reach: Reach) -> None:
        super().__init__(id, loop, reach)
        self.root = torch.empty(0, requires_grad=True)
        # The trainer may be this process, which counts the calls of its own part from 1.
        self._calls = _FIRST_CALL
        self._running = threading.local()

    @property
    def current_backward(self) -> RunningBackward | None:
        """The backward that runs in this thread. Several may run, one for each call that was recorded here."""
        return getattr(self._running, "current", None)

    def _place(self) -> tuple[int, ...]:
        outer = _outer.get()
        if outer is None:
            return super()._place()
        outer.calls += 1
        return (*outer.place, outer.calls)

    @contextmanager
    def propagating(self, retain_graph: bool, backward: int) -> Iterator[None]:
        """Lets this thread propagate through recorded calls during a block, which ends when all have answered."""
        current = RunningBackward(retain_graph, backward)
        before, self._running.current = self.current_backward, current
        try:
            yield
            current.finish()
        finally:
            failure = first_failure(current.posts)
            self._running.current = before
        if failure is not None:
            raise failure


class NestedPass:
    """The nested pass of a context, as `ps_service` uses it.

    Args:
        context: The nested context.

    Attributes:
        root: An extra input for `autograd.grad`, so that it also propagates through calls whose inputs require no grad.
    """

    def __init__(self, context: NestedContext) -> None:
        self.root = context.root
        self._context = context

    @contextmanager
    def calling(self, place: tuple[int, ...]) -> Iterator[None]:
        """Makes the calls of this thread during a block part of the pass, nested in the call with that place."""
        token = _outer.set(_Outer(place))
        try:
            with inside(self._context):
                yield
        finally:
            _outer.reset(token)

    def propagating(self, retain_graph: bool, backward: int) -> AbstractContextManager[None]:
        """Lets this thread propagate through such calls during a block, which ends when all have answered."""
        return self._context.propagating(retain_graph, backward)

    def others(self) -> list[str]:
        """Names of the owners that were called."""
        return [session.owner for session in self._context.sessions]

    def end(self, over: Over) -> None:
        """Ends the pass on the other owners, without waiting for them."""
        self._context.end(over)
