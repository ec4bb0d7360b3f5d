"""The requests of an owner that have no answer yet, from streams and unary methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ps_service.access import namespaces
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_service.sessions.reply_cache import Answer
    from ps_service.sessions.sessions import SessionState


class Running(NamedTuple):
    """A request whose answer is not kept yet, as a message, the trainer that sent it, and its number; 0 for a unary
    one. If the answer may be in the log already, `made` has it, with the number under which it will be kept."""

    trainer: bytes
    request: Any
    number: int = 0
    made: tuple[int, Answer] | None = None


class RequestSource(Protocol):
    """A source of requests, such as the streams or the unary methods."""

    def running(self) -> Iterator[Running]:
        """The requests from this source that have no answer yet. May be called in any thread."""

    def dismiss(self, session: SessionState) -> None:
        """Cancels a session's requests from this source, and frees all that it holds here, also if it raises."""


class RequestSources:
    """All sources of requests of an owner. Used on the event loop, but for `running`."""

    def __init__(self) -> None:
        self._sources: list[RequestSource] = []

    def add(self, source: RequestSource) -> None:
        """Registers a source. A session is dismissed from the sources in the order of their registration."""
        self._sources.append(source)

    def running(self) -> Iterator[Running]:
        """The requests that have no answer yet, but for reports about the owner. May be called in any thread."""
        for source in self._sources:
            yield from source.running()

    def check_stays(self, session: SessionState | None, namespace: str) -> None:
        """Raises `InvalidArgumentError` if a session would go to another namespace while requests that were admitted in
        its own have no answer."""
        if session is None or session.namespace == namespace:
            return
        if any(each.trainer == session.trainer for each in self.running()):
            here, there = (each or namespaces.DEFAULT for each in (session.namespace, namespace))
            raise InvalidArgumentError(
                f"the session {session.name} has requests in the namespace {here!r} that have no answer yet; wait for "
                f"them before you go on in {there!r}, or use another id there"
            )

    def dismiss(self, session: SessionState) -> None:
        """Ends a session's stream, cancels its requests, and frees everything that it held, also if it raises."""
        with ExitStack() as stack:
            for source in reversed(self._sources):
                stack.callback(source.dismiss, session)
