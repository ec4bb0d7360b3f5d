"""The context in whose block a task or thread is."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_client.contexts.context import Context

_current: ContextVar[Context | None] = ContextVar("trainer_client_context", default=None)


def set_current(context: Context) -> Token[Context | None]:
    """The block of a context begins here; the token ends it."""
    return _current.set(context)


def reset_current(token: Token[Context | None]) -> None:
    """The block that began with a token has ended."""
    _current.reset(token)


def current_context() -> Context | None:
    """The context whose block this task or thread is in."""
    return _current.get()


@contextmanager
def inside(context: Context | None) -> Iterator[None]:
    """While the block runs, the calls of this task or thread belong to a context, which goes on afterwards."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
