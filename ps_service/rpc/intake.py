"""Receives the messages of one stream, as far as the budget of its session allows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ps_wire.connections.assembler import Assembler, Message
from ps_wire.errors import InvalidArgumentError, OverloadedError, QuotaError
from ps_wire.limits import SMALL_BYTES
from ps_wire.numbers import check_seconds

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.sessions.sessions import SessionState
    from ps_wire.connections.frames import Packet


class Intake:
    """Assembles the messages of one stream. Large ones count towards the budget of its session: `begun` has the sizes
    of those that have begun to arrive, by number. While it is empty, packets of small ones need only `feed`."""

    def __init__(self, engine: Engine, session: SessionState) -> None:
        self._limit = engine.limits.max_message_bytes
        self._assembler = Assembler(self._limit, max_small=engine.limits.max_in_flight)
        self._budget = engine.budget
        self._session = session
        self._holding = engine.budget.of(session.trainer)
        self._quotas = engine.quotas if engine.quotas.is_on else None
        self._pausing: asyncio.Task[Message | None] | None = None
        self.begun: dict[int, int] = {}
        self.place = self._assembler.place
        self.feed = self._assembler.feed

    def take(self, packet: Packet) -> Message | asyncio.Task[Message | None] | None:
        """Adds a packet, and returns the message that it completes, if any; a task with that if there is no space now,
        before whose end no further packet may be added. Raises `InvalidArgumentError` if the packet does not fit the
        ones before it: the stream cannot be used any more."""
        frame = packet.frame
        nbytes = frame.payload_bytes
        # A message over the limit is refused in any case, and so is a part that announces a payload.
        if SMALL_BYTES < nbytes <= self._limit and not frame.HasField("part"):
            if self._quotas is not None:
                try:
                    self._quotas.check_message(self._quotas.account_of(self._session.trainer), nbytes)
                except QuotaError as error:
                    return self._assembler.refuse(packet, error)
            is_nested = frame.request.depth > 0 and self._session.may_nest
            if not self._budget.admits(self._holding, nbytes, is_nested):
                self._pausing = asyncio.create_task(self._when_admitted(packet, nbytes))
                return self._pausing
            message = self.feed(packet)
            if message is None:
                self._budget.take(self._holding, nbytes)
                self.begun[frame.number] = nbytes
            return message
        message = self.feed(packet)
        # A cancellation has the number of a message that may still arrive, and announces no payload.
        if message is not None and message.frame.payload_bytes and self.begun:
            # It counts as a request from now on, if it becomes one.
            self._release(self.begun.pop(message.frame.number, 0))
        return message

    def close(self) -> None:
        """Drops the incomplete messages, because the stream has ended."""
        if self._pausing is not None:
            self._pausing.cancel()
        for nbytes in self.begun.values():
            self._release(nbytes)
        self.begun.clear()

    async def _when_admitted(self, packet: Packet, nbytes: int) -> Message | None:
        request = packet.frame.request
        try:
            check_seconds("timeout_seconds", request.timeout_seconds)
            is_nested = request.depth > 0 and self._session.may_nest
            await self._budget.admitted(self._holding, nbytes, is_nested, request.timeout_seconds)
        except (InvalidArgumentError, OverloadedError) as error:
            return self._assembler.refuse(packet, error)
        message = None
        try:
            message = self.feed(packet)
            if message is None:
                self.begun[packet.frame.number] = nbytes
                nbytes = 0
        finally:
            self._release(nbytes)
        return message

    def _release(self, nbytes: int) -> None:
        if nbytes:
            self._budget.release(self._holding, nbytes)
