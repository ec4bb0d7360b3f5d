"""The block of a context: how it begins and ends, what it waits for, and its span in a trace."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, suppress
from itertools import filterfalse
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from weakref import WeakKeyDictionary

from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime import forks
from ps_wire.runtime.noop import noop
from ps_wire.v1.frames_pb2 import Frame
from trainer_client.endings import check_succeeded
from trainer_client.pending import Pending, all_ended

if TYPE_CHECKING:
    from ps_wire.refs import ContextId
    from ps_wire.tracing import Span, Tracing
    from ps_wire.v1.operations_pb2 import ContextId as ContextMessage
    from trainer_client.contexts.closing import Part
    from trainer_client.session.session import Session

T = TypeVar("T")

_log: Final = logging.getLogger("trainer_client")

_told: Final[WeakKeyDictionary[Session, set[str]]] = WeakKeyDictionary()
"""The tables of which it was logged that nothing trains them."""


class PassSpan:
    """The span of the block of a context."""

    def __init__(self, tracing: Tracing, id: ContextId) -> None:
        self._tracing = tracing
        self._id = id
        self._span: Span | None = None
        self._inside = ExitStack()

    def begin(self) -> None:
        """Begins it, unless it has begun. Spans that this task or thread begins from here on are its children."""
        self._inside.enter_context(self.ahead())

    def ahead(self) -> AbstractContextManager[None]:
        """Begins it before the block of the pass. Spans that are begun in the block of the result are its children."""
        if self._span is None:
            self._span = self._tracing.begin("pass", {"ps.context": str(self._id)})
        return self._span.inside()

    def end(self, error: BaseException | None) -> None:
        """Ends it, with an error or not. Does nothing if it has not begun, or has ended."""
        self._inside.close()
        span, self._span = self._span, None
        if span is not None and error is not None:
            span.fail(error)
        elif span is not None:
            span.end()


class Block:
    """The block of a context. With `async with` it ends when what was begun in it has ended, also if the program does
    not await that. If some of it fails meanwhile, the block raises the error; what has failed before, and nobody has
    awaited, is reported in the log. A block that is left by an exception waits for nothing."""

    enter: Callable[[], None]
    end: Callable[..., None]
    _begun: list[Pending[Any]]

    def waits_for(self, work: Pending[T]) -> Pending[T]:
        """The block will end after this. Returns it."""
        self._begun = [*filterfalse(_is_settled, self._begun), work]
        return work

    async def __aenter__(self) -> Self:
        self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while error is None and self._begun:
                begun, self._begun = self._begun, []
                for each in begun:
                    if not each.settled:
                        await each
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.end(error=error)

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not all(map(_is_settled, self._begun)):
            error = InvalidArgumentError(
                "the block of this context was left before a backward or step in it had ended, which counts for "
                "nothing; await it, or use `async with`, which waits for it"
            )
            self.end(error=error)
            raise error
        self.end(error=error)


_is_settled: Final = attrgetter("settled")


def tell_end(id: ContextMessage, sessions: Sequence[Session], over: tuple[int, Sequence[int]] = (0, ())) -> None:
    """Tells owners that a pass has ended, and others; see `Context.end`. Does not wait for them. It does so also in a
    call that was given up: the requests belong to none."""
    for session in sessions:
        frame = Frame()
        request = frame.request.end_context
        request.context.CopyFrom(id)
        request.all_before, but = over
        request.but.extend(but)
        contextvars.Context().run(session.submit, frame, None, noop)


def end_freed(loop: asyncio.AbstractEventLoop, id: ContextMessage, sessions: Mapping[str, Session]) -> None:
    """The same for a pass that was freed before its end. May be called by the garbage collector, in any thread."""
    if sessions and not forks.is_foreign(loop):
        # The loop may be closed; then the sessions have ended, and the pass with them.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell_end, id, list(sessions.values()))


async def after(loop: asyncio.AbstractEventLoop, parts: Sequence[Pending[Any]], work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine once all have succeeded; otherwise raises as `check_succeeded`. Cancelling it cancels none."""
    try:
        if parts:
            await all_ended(loop, parts)
            check_succeeded(parts)
    except BaseException:
        work.close()
        raise
    return await work


def tell_untrained(looked_up: Mapping[str, Sequence[Part]], stepped: Set[str]) -> None:
    """Logs, once for each looked-up table, that a pass with a step has not stepped the table's optimizer."""
    for name, parts in looked_up.items():
        if not stepped.isdisjoint(part.name.object_id for part in parts):
            continue
        told = _told.setdefault(parts[0].session, set())
        if name in told:
            continue
        told.add(name)
        _log.warning(
            "a pass looked up in table %r, and none of its steps trains the table. Give it to the optimizer, as in "
            "ps.optimizer(cls, [*net.parameters(), table], …), or step with step=[opt, table.optimizer]. In both, its "
            "rows are updated as ps.table(…, optimizer=…) says, and not by cls. Or look up under torch.no_grad() "
            "(logged once)",
            name,
        )
