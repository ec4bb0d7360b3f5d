"""The current context of a task or thread."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer_client.graph.recorder import RecordingPass

_current: ContextVar[RecordingPass | None] = ContextVar("trainer_client_context", default=None)


def set_current(context: RecordingPass) -> Token[RecordingPass | None]:
    """Makes a context the current one; returns the token for `reset_current`."""
    return _current.set(context)


def reset_current(token: Token[RecordingPass | None]) -> None:
    """Restores the context that was current before `set_current`."""
    _current.reset(token)


def current_context() -> RecordingPass | None:
    """The context whose block this task or thread is in; None outside of such blocks, and after a step has ended it."""
    context = _current.get()
    return None if context is None or context.finished else context


@contextmanager
def inside(context: RecordingPass | None) -> Iterator[None]:
    """Makes a context the current one during a block, without ending it afterwards."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
