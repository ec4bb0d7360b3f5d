"""Tells owners that a pass has ended."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ps_wire.runtime import forks
from ps_wire.runtime.nothing import nothing
from ps_wire.v1.frames_pb2 import Frame

if TYPE_CHECKING:
    from ps_wire.v1.operations_pb2 import ContextId
    from trainer_client.session.session import Session


def tell_end(id: ContextId, sessions: Sequence[Session], over: tuple[int, Sequence[int]] = (0, ())) -> None:
    """Tells owners that a pass has ended. Does not wait for them.

    Args:
        id: The pass.
        sessions: The sessions with these owners.
        over: A number, and exceptions below it: all other passes with lower numbers have ended.
    """
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
