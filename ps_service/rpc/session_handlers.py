"""The session handlers of an owner, one per session."""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING

from ps_service.access.identities import ANYONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ps_service.access.identities import Identity
    from ps_service.engine import Engine
    from ps_service.rpc.session_handler import SessionHandler
    from ps_service.sessions.request_sources import Running
    from ps_service.sessions.sessions import SessionState

_log = logging.getLogger(__name__)


class SessionHandlers:
    """The session handlers of an owner, one per session, which `make` makes; ends those whose lease has run out."""

    def __init__(self, engine: Engine, make: Callable[[Engine, SessionState], SessionHandler]) -> None:
        self._engine = engine
        self._make = make
        self._all: dict[bytes, SessionHandler] = {}

    def open(self, trainer: bytes, identity: Identity = ANYONE) -> SessionHandler:
        """The session handler of a trainer; made if there is none. Raises as `Sessions.open`."""
        session = self._engine.sessions.open(trainer, identity)
        known = self._all.get(trainer)
        if known is None or known.session is not session:
            known = self._all[trainer] = self._make(self._engine, session)
        return known

    def end(self, session_handler: SessionHandler) -> None:
        """Frees a session and everything it held."""
        if self._all.get(session_handler.session.trainer) is session_handler:
            del self._all[session_handler.session.trainer]
        try:
            session_handler.end()
        finally:
            self._engine.end_session(session_handler.session)

    def dismiss(self, session: SessionState) -> None:
        """Frees a session although its trainer is connected. The trainer gets an error when it reconnects."""
        session_handler = self._all.get(session.trainer) or self._make(self._engine, session)
        # First of all, so that answers of requests that are cancelled now are not sent, and a stream that is being
        # opened does not continue the session.
        session_handler.stream.greeted()
        self.end(session_handler)

    def running(self) -> Iterator[Running]:
        """The requests of all sessions that have no answer yet. May be called in any thread."""
        return chain.from_iterable(session_handler.running() for session_handler in list(self._all.values()))

    def sweep(self) -> None:
        """Ends the sessions whose lease has run out."""
        for session in self._engine.sessions.expired():
            self._engine.counters.sessions_ended["lease"] += 1
            try:
                self.end(self._all.get(session.trainer) or self._make(self._engine, session))
            except Exception:
                # The other sessions are ended nevertheless.
                _log.exception("the session of trainer %s could not be ended as it should be", session.name)

    @property
    def busy(self) -> bool:
        """Whether a request is running, besides those that wait for other members."""
        return any(session_handler.busy for session_handler in self._all.values())

    def tell_draining(self) -> None:
        """Tells the connected trainers that the owner drains, if it lets open passes end."""
        for session_handler in self._all.values():
            session_handler.tell_draining()

    def end_streams(self) -> None:
        """Ends the streams of all sessions. Their trainers open new ones."""
        for session_handler in list(self._all.values()):
            session_handler.stream.greeted()

    def cut_off(self) -> None:
        """Answers running requests as cut off."""
        for session_handler in self._all.values():
            session_handler.cut_off()

    async def settled(self) -> None:
        """Waits until no request is running, and all answers are sent."""
        for session_handler in list(self._all.values()):
            await session_handler.settled()
            outbox = session_handler.stream.outbox
            if outbox is not None:
                await outbox.flushed()

    def close(self) -> None:
        """Cancels the running requests."""
        for session_handler in self._all.values():
            session_handler.end()
