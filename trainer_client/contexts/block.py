"""The block of a context: how it begins and ends, and what it waits for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from trainer_client.pending import Pending

T = TypeVar("T")


class Block(ABC):
    """Something that is used with `async with`, or `with`.

    A block of `async with` ends when the backwards and steps that were begun in it have ended, also if the program does
    not await them. If one of them fails, the block raises its error. A block that is left by an exception waits for
    nothing.
    """

    def __init__(self) -> None:
        self._begun: list[Pending[Any]] = []

    @abstractmethod
    def enter(self) -> None:
        """Begins the block."""

    @abstractmethod
    def end(self, *, error: BaseException | None = None) -> None:
        """Ends the block.

        Args:
            error: The exception that ends it.
        """

    def waits_for(self, work: Pending[T]) -> Pending[T]:
        """The block will end after this. Returns it."""
        self._begun = [*self._open(), work]
        return work

    def _open(self) -> list[Pending[Any]]:
        return [each for each in self._begun if not each.settled]

    async def __aenter__(self) -> Self:
        self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while error is None and (begun := self._open()):
                await begun[0]
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
        if error is None and self._open():
            error = InvalidArgumentError(
                "the block of this context was left before a backward or step in it had ended, which counts for "
                "nothing; await it, or use `async with`, which waits for it"
            )
            self.end(error=error)
            raise error
        self.end(error=error)
