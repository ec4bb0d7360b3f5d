"""The stream that the answers of one session are sent on."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from ps_wire.limits import SMALL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_service.memory.message_budget import Budget
    from ps_service.sessions.fence import Fence
    from ps_service.sessions.reply_cache import Answer
    from ps_wire.connections.outbox import Outbox
    from ps_wire.direct import DirectConnection


class SessionStream:
    """The latest stream of a session; each new one ends the one before. `outbox` is None while none is open. `direct`
    is the direct connection that has replaced a gRPC stream. `when_freed` is called when more answers may have space.
    """

    __slots__ = ("_budget", "_fence", "_holding", "_task", "_turn", "_when_freed", "direct", "outbox")

    def __init__(self, budget: Budget, trainer: bytes, when_freed: Callable[[], None], fence: Fence) -> None:
        self.outbox: Outbox | None = None
        self.direct: DirectConnection | None = None
        self._budget = budget
        self._holding = budget.of(trainer)
        self._when_freed = when_freed
        self._fence = fence
        self._task: asyncio.Task[None] | None = None
        self._turn = 0

    def greeted(self, direct: DirectConnection | None = None) -> int:
        """Notes that the trainer has opened a new stream, which ends the one before, and returns its number."""
        self.direct = direct
        self._forget_outbox()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._turn += 1
        return self._turn

    def beside(self, turn: int) -> DirectConnection | None:
        """The direct connection that has replaced the stream with this number; None if none has, or a newer one."""
        return self.direct if self._turn == turn + 1 else None

    def take_over(self, outbox: Outbox, turn: int) -> bool:
        """Sends answers to this outbox from now on; the current task serves its stream. False if the trainer has opened
        a newer stream before the welcome on this one was sent."""
        if turn != self._turn:
            return False
        self.outbox = outbox
        self._task = asyncio.current_task()
        # The answers that the trainer has received were dropped when it reconnected.
        self._when_freed()
        return True

    def leave(self, outbox: Outbox) -> None:
        """Notes that the stream of this outbox has ended."""
        if self.outbox is outbox:
            self._forget_outbox()
            self._task = None

    def send(self, answer: Answer, later: bool = False, kept: bool = True) -> None:
        """Sends an answer, with the next message if it may be `later`. Without a stream it is not sent, nor while the
        owner does not know whether it was replaced; the trainer asks again when it reconnects. An answer that is kept
        counts in the reply cache until it is confirmed, others until they are sent."""
        outbox = self.outbox
        if outbox is None or (self._fence.watched and not self._fence.is_sure()):
            return
        nbytes = answer.nbytes
        if kept or nbytes <= SMALL_BYTES:
            outbox.put(answer.frame, answer.chunks, nbytes, later)
        else:
            self._holding.unsent += nbytes
            self._budget.unsent += nbytes
            outbox.put(answer.frame, answer.chunks, nbytes, later, partial(self._sent, outbox, nbytes))

    def _sent(self, outbox: Outbox, nbytes: int) -> None:
        if self.outbox is outbox:
            self._holding.unsent -= nbytes
            self._budget.unsent -= nbytes
            self._when_freed()

    def _forget_outbox(self) -> None:
        """Stops counting answers that were being sent on a stream that has ended."""
        self.outbox = None
        self._budget.unsent -= self._holding.unsent
        self._holding.unsent = 0
        self._when_freed()
