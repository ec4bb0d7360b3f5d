"""What happens at the end of a pass, and of its backwards."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from ps_wire.runtime import forks
from ps_wire.runtime.nothing import nothing
from ps_wire.v1.frames_pb2 import Frame
from trainer_client.pending import Pending, when_all_done

if TYPE_CHECKING:
    from collections.abc import Set

    from ps_wire.v1.operations_pb2 import ContextId
    from trainer_client.contexts.closing import Part
    from trainer_client.session.session import Session

T = TypeVar("T")

_log: Final = logging.getLogger("trainer_client")

_told: Final[WeakKeyDictionary[Session, set[str]]] = WeakKeyDictionary()
"""The tables of which it was logged."""


def tell_end(id: ContextId, sessions: Sequence[Session], over: tuple[int, Sequence[int]] = (0, ())) -> None:
    """Tells owners that a pass has ended, and others; see `Context.end`. Does not wait for them."""
    for session in sessions:
        frame = Frame()
        request = frame.request.end_context
        request.context.CopyFrom(id)
        request.all_before, but = over
        request.but.extend(but)
        session.submit(frame, None, nothing)


def end_freed(loop: asyncio.AbstractEventLoop, id: ContextId, sessions: Mapping[str, Session]) -> None:
    """The same for a pass that was freed before its end. May be called by the garbage collector, in any thread."""
    if sessions and not forks.is_foreign(loop):
        # The loop may be closed; then the sessions have ended, and the pass with them. The request must not get the
        # scope of whatever runs here.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell_end, id, list(sessions.values()), context=contextvars.Context())


async def after(loop: asyncio.AbstractEventLoop, parts: Sequence[Pending[Any]], work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine once all have succeeded, or raises the error of the first that has failed.

    Unlike with `await`, cancelling the task that waits cancels none of them.
    """
    try:
        if parts:
            whole: Pending[None] = Pending(loop)
            when_all_done(iter(parts), partial(whole.resolve, nothing))
            await whole
            for part in parts:
                part.passed_on()
    except BaseException:
        work.close()
        raise
    return await work


def tell_untrained(looked_up: Mapping[str, Sequence[Part]], stepped: Set[str]) -> None:
    """Logs, once for each table, that a pass with a step has not stepped its optimizer.

    `looked_up` has the parts of the optimizers of tables by their names, `stepped` object ids of what the pass stepped.
    """
    for name, parts in looked_up.items():
        if not stepped.isdisjoint(part.name.object_id for part in parts):
            continue
        told = _told.setdefault(parts[0].session, set())
        if name in told:
            continue
        told.add(name)
        _log.warning(
            "a pass looked up in table %r, and none of its steps trains the table. Give it to the optimizer, as in "
            "ps.optimizer(cls, [*net.parameters(), table], …), or step with step=[opt, table.optimizer]; or look up "
            "under torch.no_grad() (logged once)",
            name,
        )
