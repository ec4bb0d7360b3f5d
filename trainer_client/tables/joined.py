"""The result that several calls make together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from trainer_client.pending import Pending, results, when_all_done

T = TypeVar("T")


class Joined(Pending[T]):
    """A result that is made from those of several calls, in the thread that reads it. Cancelling it cancels them."""

    __slots__ = ("_parts",)

    def __init__(
        self, loop: asyncio.AbstractEventLoop, parts: Sequence[Pending[Any]], read: Callable[[list[Any]], T]
    ) -> None:
        super().__init__(loop)
        self._parts = tuple(parts)
        when_all_done(iter(self._parts), partial(self.resolve, partial(_read, self._parts, read)))

    def _when_cancelled(self) -> None:
        # A method that `Pending` kept would be a cycle, and hold the rows until the garbage collector comes.
        for part in self._parts:
            part.cancel()

    def _hurry(self) -> None:
        for part in self._parts:
            part._hurry()

    @property
    def title(self) -> str:
        return "a look-up"


def _read(parts: Sequence[Pending[Any]], read: Callable[[list[Any]], T]) -> T:
    return read(results(parts))
