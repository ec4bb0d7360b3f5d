"""Receives the messages of one stream, as far as the budget of its session allows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ps_wire.connections.assembler import Assembler, Message
from ps_wire.errors import OverloadedError
from ps_wire.limits import SMALL_BYTES
from ps_wire.numbers import LONGEST_SECONDS, no_seconds

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_wire.connections.frames import Packet


class Intake:
    """Assembles the messages of one stream.

    Args:
        engine: The owner.
        trainer: Id of the trainer.

    Attributes:
        place: Gives the memory for the next part of a message; see `Place`.
    """

    def __init__(self, engine: Engine, trainer: bytes) -> None:
        self._limit = engine.limits.max_message_bytes
        self._assembler = Assembler(self._limit)
        self._budget = engine.budget
        self._holding = engine.budget.of(trainer)
        # The large messages that have begun to arrive: size by number.
        self._begun: dict[int, int] = {}
        self._pausing: asyncio.Task[Message | None] | None = None
        self.place = self._assembler.place

    def take(self, packet: Packet) -> Message | asyncio.Task[Message | None] | None:
        """Adds a packet, and returns the message that it completes.

        Returns:
            The message; None if the packet completes none. If there is no space now, a task with that result; no
            further packet may be added before the task has ended.

        Raises:
            InvalidArgumentError: The packet does not fit the ones before it; the stream cannot be used any more.
        """
        nbytes = packet.frame.payload_bytes
        if nbytes <= SMALL_BYTES and not self._begun:
            return self._assembler.feed(packet)
        # A message over the limit is refused in any case, and so is a part that announces a payload.
        if SMALL_BYTES < nbytes <= self._limit and not packet.frame.HasField("part"):
            if not self._budget.admits(self._holding, nbytes, packet.frame.request.depth > 0):
                self._pausing = asyncio.create_task(self._when_admitted(packet, nbytes))
                return self._pausing
            self._budget.take(self._holding, nbytes)
            return self._take_first(packet, nbytes)
        message = self._assembler.feed(packet)
        return message if message is None or not self._begun else self._completed(message)

    def close(self) -> None:
        """Drops the incomplete messages, because the stream has ended."""
        if self._pausing is not None:
            self._pausing.cancel()
        for nbytes in self._begun.values():
            self._budget.release(self._holding, nbytes)
        self._begun.clear()

    async def _when_admitted(self, packet: Packet, nbytes: int) -> Message | None:
        request = packet.frame.request
        if not 0.0 <= request.timeout_seconds <= LONGEST_SECONDS:
            return self._assembler.refuse(packet, no_seconds("timeout_seconds", request.timeout_seconds))
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
        """Stops counting a complete message as one that arrives; it counts as a request if it becomes one."""
        # A cancellation has the number of a message that may still arrive, and announces no payload.
        nbytes = self._begun.pop(message.frame.number, 0) if message.frame.payload_bytes else 0
        if nbytes:
            self._budget.release(self._holding, nbytes)
        return message
