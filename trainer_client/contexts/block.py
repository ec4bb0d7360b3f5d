"""The block of a context: how it begins and ends, what it waits for, and its span in a trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import filterfalse
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ps_wire.refs import ContextId
    from ps_wire.tracing import Span, Tracing
    from trainer_client.pending import Pending


T = TypeVar("T")


class PassSpan:
    """The span of the block of a context."""

    __slots__ = ("_id", "_inside", "_span", "_tracing")

    _inside: AbstractContextManager[None] | None

    def __init__(self, tracing: Tracing, id: ContextId) -> None:
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


class Block(ABC):
    """Something that is used with `async with`, or `with`.

    A block of `async with` ends when the backwards and steps that were begun in it have ended, also if the program does
    not await them. If one of them fails, the block raises its error. A block that is left by an exception waits for
    nothing.
    """

    _begun: list[Pending[Any]]

    @abstractmethod
    def enter(self) -> None:
        """Begins the block."""

    @abstractmethod
    def end(self, *, error: BaseException | None = None) -> None:
        """Ends the block, maybe with an exception."""

    def waits_for(self, work: Pending[T]) -> Pending[T]:
        """The block will end after this. Returns it."""
        self._begun = [*filterfalse(_is_settled, self._begun), work]
        return work

    async def __aenter__(self) -> Self:
        self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while error is None and self._begun:
                begun, self._begun = self._begun, []
                for each in begun:
                    if not each.settled:
                        await each
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.end(error=error)

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not all(map(_is_settled, self._begun)):
            error = InvalidArgumentError(
                "the block of this context was left before a backward or step in it had ended, which counts for "
                "nothing; await it, or use `async with`, which waits for it"
            )
            self.end(error=error)
            raise error
        self.end(error=error)


_is_settled: Final = attrgetter("settled")
