"""The span of a pass, whose children are the spans of its requests."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ps_wire.refs import ContextId
    from ps_wire.tracing import Span, Tracing


class PassSpan:
    """The span of the block of a context.

    Args:
        tracing: Makes it; None if the program is not traced.
        id: Id of the context.
    """

    __slots__ = ("_id", "_inside", "_span", "_tracing")

    _inside: AbstractContextManager[None] | None

    def __init__(self, tracing: Tracing | None, id: ContextId) -> None:
        self._tracing = tracing
        self._id = id
        self._span: Span | None = None
        self._inside = None

    def begin(self) -> None:
        """Begins it, unless it has begun. Spans that this task or thread begins from here on are its children."""
        self._inside = self.ahead()
        self._inside.__enter__()

    def ahead(self) -> AbstractContextManager[None]:
        """Begins it before the block of the pass. Spans that are begun in the block of the result are its children."""
        if self._tracing is None:
            return nullcontext()
        if self._span is None:
            self._span = self._tracing.begin("pass", {"ps.context": str(self._id)})
        return self._span.inside()

    def end(self, error: BaseException | None) -> None:
        """Ends it, with an error or not. Does nothing if it has not begun, or has ended."""
        span, self._span = self._span, None
        inside, self._inside = self._inside, None
        if inside is not None:
            inside.__exit__(None, None, None)
        if span is not None:
            if error is None:
                span.end()
            else:
                span.fail(error)
