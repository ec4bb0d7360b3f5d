"""Steps that owners refuse, with nothing applied, because rows of tables are elsewhere than their trainer knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from ps_wire.errors import RowsMovedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Follow = Callable[[], Awaitable[Any]]
    """Takes up where the rows of tables are now."""

T = TypeVar("T")

_MOST_REPEATS: Final = 20
"""How often a step is made again because rows have moved meanwhile, before the program gets the error."""


async def following(follow: Follow, step: Callable[[], Awaitable[T]]) -> T:
    """Makes a step, and makes it again where the rows are now if owners refuse it."""
    for _ in range(_MOST_REPEATS):
        try:
            return await step()
        except RowsMovedError:
            await follow()
    return await step()


def following_here(follow: Callable[[], None], step: Callable[[], T]) -> T:
    """The same in this thread."""
    for _ in range(_MOST_REPEATS):
        try:
            return step()
        except RowsMovedError:
            follow()
    return step()
