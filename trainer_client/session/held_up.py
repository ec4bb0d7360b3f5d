"""Tells owners that drain which passes wait for other owners, so that owners do not wait for each other's passes."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from ps_wire.refs import ContextId

if TYPE_CHECKING:
    from ps_wire.v1.frames_pb2 import Request


class Session(Protocol):
    """What is asked of the sessions of a client; one drains if it is connected to an owner that does."""

    loop: asyncio.AbstractEventLoop
    is_draining: bool

    def held_up(self) -> set[ContextId]:
        """The passes that wait for its owner, which drains or is away."""

    def tell_held_up(self, contexts: set[ContextId]) -> None:
        """Tells its owner, which drains, the passes that wait for others."""

    def try_now(self) -> None:
        """Tries to reach its owner at once, if it is away."""


class HeldUpPasses:
    """Tells the owners of a client that drain which passes wait for others. While none drains it does nothing."""

    def __init__(self) -> None:
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._soon = False

    def add(self, session: Session) -> None:
        """Adds a session of the client."""
        self._sessions.add(session)

    def remove(self, session: Session) -> None:
        """Removes a session that has ended."""
        self._sessions.discard(session)
        self.changed()

    def begin(self) -> None:
        """An owner drains. Those that are away may be there again, and their passes need not be given up then."""
        for session in list(self._sessions):
            session.try_now()
        self.changed()

    def changed(self) -> None:
        """A pass may wait for an owner now, or wait no more. Must be called on the event loop."""
        draining = next((each for each in self._sessions if each.is_draining), None)
        if draining is not None and not self._soon and len(self._sessions) > 1:
            self._soon = True
            draining.loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._soon = False
        waiting = {each: each.held_up() for each in self._sessions}
        for session in waiting:
            if session.is_draining:
                session.tell_held_up(set().union(*(ids for each, ids in waiting.items() if each is not session)))


def passes_of(requests: Iterable[Request]) -> set[ContextId]:
    """The passes that requests belong to."""
    found = set()
    for each in requests:
        name = each.WhichOneof("operation")
        message = None if name is None else getattr(each, name)
        if message is not None and "context" in message.DESCRIPTOR.fields_by_name and message.HasField("context"):
            found.add(ContextId.from_message(message.context))
    return found
