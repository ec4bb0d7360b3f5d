"""Of which session of an owner an answer is that is read late: that session may be lost by then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol


class Counting(Protocol):
    """A session, which counts how often it was lost, and how often its owner has restarted."""

    losses: int
    restarts: int


class Came(NamedTuple):
    """When an answer came: the session, and its losses and restarts by then."""

    session: Counting
    losses: int
    restarts: int

    @contextmanager
    def being_read(self) -> Iterator[None]:
        """References that are made in the block are of the answer."""
        token = _read.set(self)
        try:
            yield
        finally:
            _read.reset(token)


def counted_at(session: Counting) -> tuple[int, int]:
    """The losses and restarts of a session that a reference belongs to: when the answer came that is read here, and
    otherwise by now."""
    came = _read.get()
    return came[1:] if came is not None and came.session is session else (session.losses, session.restarts)


_read: Final[ContextVar[Came | None]] = ContextVar("read", default=None)
"""The answer that is being read."""
