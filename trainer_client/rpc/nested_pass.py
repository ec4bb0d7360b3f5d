"""NestedPass: what hosted code does on other owners in one pass of some trainer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import torch

from trainer_client.contexts.context import Context, Reach
from trainer_client.graph.current import inside
from trainer_client.graph.passes import Pass, first_failure

if TYPE_CHECKING:
    from ps_service.passes.nested_pass import Over
    from ps_wire.refs import ContextId

_FIRST_CALL: Final = 1 << 32


class _Outer:
    """The call that a thread runs for a pass.

    Args:
        place: Its number, after those of the calls around it.

    Attributes:
        place: The same.
        calls: How many it has made.
    """

    def __init__(self, place: tuple[int, ...]) -> None:
        self.place = place
        self.calls = 0


_outer: ContextVar[_Outer | None] = ContextVar("trainer_client_outer", default=None)


class NestedContext(Context):
    """A pass of another trainer, as far as it leads on from here.

    The trainer gave its name to the owner here with a call. Calls that are made for that one are recorded under the
    same name, on the sessions of this process.

    Args:
        id: Its name.
        loop: The event loop of this process's client.
        reach: Gives the session with an owner.
    """

    joins_any_client = True

    def __init__(self, id: ContextId, loop: asyncio.AbstractEventLoop, reach: Reach) -> None:
        super().__init__(id, loop, reach)
        self.root = torch.empty(0, requires_grad=True)
        # The trainer may be this very process, which counts the calls of its own part from one.
        self._calls = _FIRST_CALL
        self._running = threading.local()

    @property
    def current_pass(self) -> Pass | None:
        """The backward that runs in this thread. There may be several: one for each call that was recorded here."""
        return getattr(self._running, "current", None)

    def _place(self) -> tuple[int, ...]:
        outer = _outer.get()
        if outer is None:
            return super()._place()
        outer.calls += 1
        return (*outer.place, outer.calls)

    @contextmanager
    def propagating(self, retain_graph: bool, backward: int) -> Iterator[None]:
        """While the block runs, this thread propagates through recorded calls; at its end they have all answered."""
        current = Pass(retain_graph, backward)
        before, self._running.current = self.current_pass, current
        try:
            yield
        finally:
            failure = first_failure(current.posts)
            self._running.current = before
        if failure is not None:
            raise failure


class NestedPass:
    """One pass on the owners that hosted code calls. What `ps_service` knows of it.

    Args:
        context: The pass.

    Attributes:
        root: What autograd is asked for to make it go back through calls whose inputs lead nowhere here.
    """

    def __init__(self, context: NestedContext) -> None:
        self.root = context.root
        self._context = context

    @contextmanager
    def calling(self, place: tuple[int, ...]) -> Iterator[None]:
        """While the block runs, the calls of this thread belong to the pass, inside the call of that place."""
        token = _outer.set(_Outer(place))
        try:
            with inside(self._context):
                yield
        finally:
            _outer.reset(token)

    def propagating(self, retain_graph: bool, backward: int) -> AbstractContextManager[None]:
        """While the block runs, this thread propagates through such calls; at its end they have all answered."""
        return self._context.propagating(retain_graph, backward)

    def others(self) -> list[str]:
        """Names of the owners that were called."""
        return [session.owner for session in self._context.sessions]

    def end(self, over: Over) -> None:
        """The pass is over: the other owners are told, without waiting for them."""
        self._context.end(over)
