"""Ends sessions that a program has left open when the interpreter exits, so that owners need not wait for a lease."""

from __future__ import annotations

import asyncio
import atexit
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakSet

LEAVE_SECONDS: Final = 1.0
"""How long the end of a program waits at most until owners have heard of it."""


class Leaving(Protocol):
    """A session, as far as its end needs it."""

    loop: asyncio.AbstractEventLoop

    @property
    def state(self) -> str: ...
    async def close(self, fails: bool = False) -> None: ...


_opened: Final[WeakSet[Leaving]] = WeakSet()


def opened(session: Leaving) -> None:
    """Notes a session, which is to be ended when the interpreter exits, if it is open by then."""
    _opened.add(session)


def _at_exit() -> None:
    """Ends the sessions whose loop still runs in a thread, or has been stopped. One that was closed has cancelled the
    links of its sessions before, which have told their owners then."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Leaving]] = {}
    for session in list(_opened):
        if session.state != "closed" and not session.loop.is_closed():
            by_loop.setdefault(session.loop, []).append(session)
    for loop, sessions in by_loop.items():
        work = _end(sessions)
        try:
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(work, loop).result(LEAVE_SECONDS)
            else:
                loop.run_until_complete(work)
        except TimeoutError:
            pass  # the loop is held up
        except RuntimeError:
            work.close()  # the loop was closed meanwhile


async def _end(sessions: list[Leaving]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(LEAVE_SECONDS):
            # The program ends: that says more than requests without an answer.
            await asyncio.gather(*(each.close(fails=True) for each in sessions), return_exceptions=True)


atexit.register(_at_exit)
