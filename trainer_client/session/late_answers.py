"""The state of a session when an answer came: the answer may be read after the session was lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol

_reading: Final[ContextVar[AnsweredIn | None]] = ContextVar("reading", default=None)
"""The session of the answer that is being read here."""


class Counting(Protocol):
    """A session, which counts how often it was lost, and how often its owner has restarted."""

    losses: int
    restarts: int


class AnsweredIn(NamedTuple):
    """The session in which an answer came, and its losses and restarts by then."""

    session: Counting
    losses: int
    restarts: int

    @contextmanager
    def being_read(self) -> Iterator[None]:
        """References that are made in the block belong to the session as it was then."""
        token = _reading.set(self)
        try:
            yield
        finally:
            _reading.reset(token)


def losses_and_restarts(session: Counting) -> tuple[int, int]:
    """Those of a session when the answer came that is being read here; of another session, those by now."""
    answered_in = _reading.get()
    if answered_in is not None and answered_in.session is session:
        return answered_in.losses, answered_in.restarts
    return session.losses, session.restarts
