"""Intake: takes in what arrives on one stream, as far as the budget of its session allows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ps_wire.connections.assembler import Assembler, Message
from ps_wire.errors import OverloadedError
from ps_wire.limits import SMALL_BYTES

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_wire.connections.frames import Packet


class Intake:
    """Puts the messages of one stream together.

    Args:
        engine: The owner.
        trainer: Whose stream it is.
    """

    def __init__(self, engine: Engine, trainer: bytes) -> None:
        self._limit = engine.limits.max_message_bytes
        self._assembler = Assembler(self._limit)
        self._budget = engine.budget
        self._holding = engine.budget.of(trainer)
        # Of the large messages that have begun to arrive: number and length.
        self._begun: dict[int, int] = {}
        self._pausing: asyncio.Task[Message | None] | None = None

    def take(self, packet: Packet) -> Message | asyncio.Task[Message | None] | None:
        """The message that a packet completes, if it does.

        Returns:
            It; or a task, when there is no space for it now: nothing more may be taken in before that has ended.

        Raises:
            InvalidArgumentError: The packet does not fit the ones before it; the stream is of no more use.
        """
        nbytes = packet.frame.payload_bytes
        if nbytes <= SMALL_BYTES and not self._begun:
            return self._assembler.feed(packet)
        # What is too large is refused in any case.
        if SMALL_BYTES < nbytes <= self._limit:
            if not self._budget.admits(self._holding, nbytes, packet.frame.request.depth > 0):
                self._pausing = asyncio.create_task(self._when_admitted(packet, nbytes))
                return self._pausing
            self._budget.take(self._holding, nbytes)
            return self._take_first(packet, nbytes)
        message = self._assembler.feed(packet)
        return message if message is None or not self._begun else self._completed(message)

    def close(self) -> None:
        """The stream has ended; what has arrived in part is let go."""
        if self._pausing is not None:
            self._pausing.cancel()
        for nbytes in self._begun.values():
            self._budget.release(self._holding, nbytes)
        self._begun.clear()

    async def _when_admitted(self, packet: Packet, nbytes: int) -> Message | None:
        request = packet.frame.request
        try:
            await self._budget.admitted(self._holding, nbytes, request.depth > 0, request.timeout_seconds)
        except OverloadedError as error:
            return self._assembler.refuse(packet, error)
        return self._take_first(packet, nbytes)

    def _take_first(self, packet: Packet, nbytes: int) -> Message | None:
        try:
            message = self._assembler.feed(packet)
        except BaseException:
            self._budget.release(self._holding, nbytes)
            raise
        self._begun[packet.frame.number] = nbytes
        return message if message is None else self._completed(message)

    def _completed(self, message: Message) -> Message:
        """A whole message counts no more as one that arrives; it will count as a request, if it becomes one."""
        nbytes = self._begun.pop(message.frame.number, 0)
        if nbytes:
            self._budget.release(self._holding, nbytes)
        return message
