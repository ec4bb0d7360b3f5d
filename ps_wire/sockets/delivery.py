"""Delivers the packets of a connection over a socket in order, and stops reading while the receiver is busy."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from ps_wire.connections.connection import ConnectionBroken

if TYPE_CHECKING:
    from ps_wire.connections.connection import Handle
    from ps_wire.connections.frames import Packet
    from ps_wire.sockets.stream_socket import StreamSocket

TURN_SECONDS: Final = 0.002
"""Seconds that the messages of one connection are delivered before the event loop serves other connections."""


class Delivery:
    """Delivers the packets in `arrived`, in order, to a task in `receive`, or to a function.

    While a packet has to wait, the socket is not read. `ended` says that one side has closed the connection, and
    `broken` why it broke; it is empty if it did not.
    """

    def __init__(self, sock: StreamSocket, arrived: deque[Packet]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self.arrived = arrived
        self.ended = False
        self.broken = ""
        self._receiver: asyncio.Future[None] | None = None
        self._handle: Handle | None = None
        self._pausing: asyncio.Future[bool] | None = None
        self._yielding = False

    async def receive(self) -> Packet | None:
        """The next packet; None once the connection is closed. Raises `ConnectionBroken` if it broke."""
        while not self.arrived:
            if self.ended:
                return None
            if self.broken:
                raise ConnectionBroken(self.broken)
            self._receiver = self._loop.create_future()
            await self._receiver
        return self.arrived.popleft()

    async def deliver(self, handle: Handle) -> None:
        """Calls `handle` with every packet as it arrives; see `Connection.deliver`."""
        self._receiver = self._loop.create_future()
        self._handle = handle
        try:
            self.hand_over()
            await self._receiver
        finally:
            self._handle = None

    def hand_over(self) -> None:
        """Delivers the packets that have arrived."""
        arrived, handle = self.arrived, self._handle
        if self._pausing is not None:
            return
        if handle is None:
            if arrived:
                self._wake()
            return
        began = time.perf_counter() if len(arrived) > 1 else 0.0
        try:
            while arrived and self._handle is not None:
                last = handle(arrived.popleft())
                if last is False:
                    if arrived and time.perf_counter() - began > TURN_SECONDS:
                        # Until the event loop has run once.
                        turn: asyncio.Future[bool] = self._loop.create_future()
                        self._yielding = True
                        self._loop.call_soon(turn.set_result, False)
                        self._pause(turn)
                        return
                elif last is True:
                    self._hand_no_more()
                else:
                    self._pause(last)
                    return
            if (self.ended or self.broken) and self._handle is not None:
                # All earlier packets have been delivered.
                self._wake()
        except Exception as error:
            self._fail(error)

    def end(self) -> None:
        """The other side has closed the connection; packets that arrived before are still delivered."""
        self.ended = True
        if self._handle is None:
            self._wake()

    def stop(self) -> None:
        """This side has closed the connection; nothing more is delivered."""
        self.ended = True
        self._wake()

    def break_off(self, reason: str) -> None:
        """Ends delivery because the connection broke: the receiver gets `ConnectionBroken` with this reason."""
        self.broken = self.broken or reason
        # The last messages of a side that has closed the connection, or that yields, are delivered first.
        if not self._yielding and not (self.ended and self._pausing is not None):
            self._wake()

    def _pause(self, until: asyncio.Future[bool]) -> None:
        """Stops reading until a future is done: the socket fills, and the other side has to wait."""
        self._pausing = until
        self._socket.pause()
        until.add_done_callback(self._go_on)

    def _go_on(self, done: asyncio.Future[bool]) -> None:
        self._pausing = None
        self._yielding = False
        if done.cancelled() or self._handle is None:
            return
        if (error := done.exception()) is not None:
            self._fail(error)
            return
        if done.result():
            self._hand_no_more()
            return
        self._socket.resume()
        self.hand_over()

    def _hand_no_more(self) -> None:
        self._handle = None
        self._wake()

    def _fail(self, error: BaseException) -> None:
        self._handle = None
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_exception(error)

    def _wake(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            if self.broken and self._handle is not None:
                self._receiver.set_exception(ConnectionBroken(self.broken))
            else:
                self._receiver.set_result(None)
