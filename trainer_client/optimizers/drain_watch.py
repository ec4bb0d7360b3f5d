"""Watches owners while a step waits in a round that another owner decides: one of them may be about to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ps_wire.errors import DrainingError, PsError

if TYPE_CHECKING:
    from trainer_client.optimizers.round_parts import RoundPart
    from trainer_client.pending import Pending

_SOON: Final = 0.2
"""Seconds after which a step waits long. Most rounds are complete by then, and cost no further request."""


class DrainWatch:
    """Takes an offer back when an owner that holds its gradients drains. That owner waits for the pass to end.

    Args:
        parts: The parts of the optimizer on these owners.
        withdraw: Takes the offer back, if it is in no round yet.
        loop: The client's event loop.

    Attributes:
        error: The error of the first owner that drains; None while there is none.
    """

    def __init__(
        self,
        parts: Iterable[RoundPart],
        withdraw: Callable[[], Pending[Any]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.error: DrainingError | None = None
        self._parts = parts
        self._withdraw = withdraw
        self._tasks: list[asyncio.Task[None]] = []
        self._timer = loop.call_later(_SOON, self._begin)

    def end(self) -> None:
        """The round is complete, or nobody waits for it any more."""
        self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _begin(self) -> None:
        self._tasks = [asyncio.create_task(self._watch(part)) for part in self._parts]

    async def _watch(self, part: RoundPart) -> None:
        # Other errors are those of the step, too: of the offer, or when the round is brought to this owner.
        with suppress(PsError):
            try:
                await part.watch()
            except DrainingError as error:
                self.error = self.error or DrainingError(f"owner {part.part.owner!r}: {error}")
                await self._withdraw()
