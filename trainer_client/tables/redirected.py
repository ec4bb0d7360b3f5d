"""Look-ups of rows that have moved to another owner meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ps_wire.errors import RowsMovedError, SessionLostError, StaleHandleError, UnavailableError
from ps_wire.runtime.failures import Failure
from trainer_client.pending import Joined, Pending, results

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

_LOST: Final = (UnavailableError, SessionLostError, StaleHandleError)
"""Errors of an owner that is gone, maybe because it has no rows any more."""

Again = Callable[[Mapping[int, BaseException]], Pending[Pending[list[Any]]]]
"""Asks again for the parts at some places, which have failed. Gives what gives their answers, in the same order."""


class LookingUp(Joined[T]):
    """As `Joined`, of requests for rows. What an owner refuses because rows have moved is asked for again, once for
    each refusal, by the routing as it is then; and so is what an owner has not answered that is gone, if the others say
    that it has no rows any more. The answers are read in the thread that reads the result."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        parts: Sequence[Pending[Any]],
        read: Callable[[list[Any]], T],
        again: Again,
    ) -> None:
        self._again = again
        super().__init__(loop, parts, read, "a look-up")

    def _all_done(self, parts: tuple[Pending[Any], ...], read: Callable[[list[Any]], T]) -> None:
        failed = {place: error for place, part in enumerate(parts) if (error := part.error) is not None}
        moved = [place for place, error in failed.items() if isinstance(error, (RowsMovedError, *_LOST))]
        if not moved or len(moved) < len(failed) or self._loop is None or self._loop.is_closed():
            super()._all_done(parts, read)
            return
        for place in moved:
            if (failure := parts[place].failure) is not None:
                failure.read()
        asking = self._again({place: failed[place] for place in moved})
        self._cancel = asking.cancel
        asking.on_done(partial(self._asked, asking, parts, moved, read))

    def _asked(
        self,
        asking: Pending[Pending[list[Any]]],
        parts: tuple[Pending[Any], ...],
        moved: Sequence[int],
        read: Callable[[list[Any]], T],
    ) -> None:
        try:
            asked = asking.result()
        except BaseException as error:
            self.resolve(Failure(error))
            return
        self._cancel = asked.cancel
        asked.on_done(partial(self.resolve, partial(_answers, asked, parts, moved, read)))


def _answers(
    asked: Pending[list[Any]], parts: Sequence[Pending[Any]], moved: Sequence[int], read: Callable[[list[Any]], T]
) -> T:
    later = dict(zip(moved, asked.result(), strict=True))
    others = iter(results(part for place, part in enumerate(parts) if place not in later))
    return read([later[place] if place in later else next(others) for place in range(len(parts))])
