"""The result that several calls make together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from trainer_client.pending import Pending, cancel_all, results, when_all_done

T = TypeVar("T")


class Joined(Pending[T]):
    """A result that is made from those of several calls, in the thread that reads it. Cancelling it cancels them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, parts: Sequence[Pending[Any]], read: Callable[[list[Any]], T]
    ) -> None:
        parts = tuple(parts)
        # Not methods, which would be a cycle, and hold the rows until the garbage collector comes.
        super().__init__(loop, partial(cancel_all, parts))
        self.hurry = partial(_hurry, parts)
        when_all_done(iter(parts), partial(self.resolve, partial(_read, parts, read)))

    @property
    def title(self) -> str:
        return "a look-up"


def _hurry(parts: Sequence[Pending[Any]]) -> None:
    for part in parts:
        if part.hurry is not None:
            part.hurry()


def _read(parts: Sequence[Pending[Any]], read: Callable[[list[Any]], T]) -> T:
    return read(results(parts))
