"""Steps of tables that follow the rows, if these have moved."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from ps_wire.errors import RowsMovedError
from trainer_client.contexts.moved_rows import following
from trainer_client.pending import Joined, Pending

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from trainer_client.contexts.moved_rows import Follow

T = TypeVar("T")


class FollowedStep(Joined[T]):
    """The result of a step, or of the same made `again` where the rows are now if owners refuse it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        step: Pending[T],
        follow: Follow,
        again: Callable[[], Awaitable[T]],
    ) -> None:
        self._follow, self._again = follow, again
        super().__init__(loop, [step], itemgetter(0), "a step")

    def _all_done(self, parts: tuple[Pending[Any], ...], read: Callable[[list[Any]], T]) -> None:
        (step,) = parts
        if not isinstance(step.error, RowsMovedError) or self._loop is None or self._loop.is_closed():
            super()._all_done(parts, read)
            return
        if (failure := step.failure) is not None:
            failure.read()
        again = Pending.run(self._loop, self._repeated())
        self._cancel = again.cancel
        again.on_done(lambda: self.resolve(again.result))

    async def _repeated(self) -> T:
        await self._follow()
        return await following(self._follow, self._again)
