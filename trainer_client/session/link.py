"""Keeps a connection to one owner open, and opens it again when it breaks."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections import deque
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ps_wire import errors
from ps_wire.connections.assembler import Assembler
from ps_wire.connections.connection import Connection, ConnectionBroken, Connector
from ps_wire.connections.frames import Packet
from ps_wire.connections.outbox import Outbox
from ps_wire.errors import InvalidArgumentError, PsError, ReplacedError, UnavailableError, UnknownNameError
from ps_wire.runtime import tasks
from ps_wire.shared_memory import descriptors
from ps_wire.shared_memory.hosts import host_id
from ps_wire.v1.frames_pb2 import Frame, Goodbye, Hello, Welcome
from trainer_client.session.leaving import LEAVE_SECONDS
from trainer_client.session.presence import Presence
from trainer_client.transport.channels import HTTP_SERVER
from trainer_client.transport.following import FollowingConnector

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from trainer_client.session.settings import Settings

_log = logging.getLogger(__name__)

_FIRST_DELAY: Final = 0.05
_LONGEST_DELAY: Final = 2.0

_MOVE_PATIENCE: Final = 5.0
"""Seconds that an owner has to welcome a trainer on another connection; the first stream stays meanwhile."""

_NO_DIRECT_SECONDS: Final = 60.0
"""Seconds for which a direct connection is not tried again after it could not be opened."""

_MOST_BREAKS: Final = 5
"""Direct connections that may break within that time before none is tried for as long: something on the way lets them
begin, and cuts them."""

_END_SECONDS: Final = 1.0
"""Seconds for which a direct connection outlives the gRPC stream beside it."""


_ELSEWHERE: Final = (ReplacedError, UnknownNameError)
"""The refusals of an owner that is not, or no longer, the one that is looked for."""


class Listener(Protocol):
    """Receives the events of a link. All methods are called on the event loop."""

    def hello(self) -> Hello:
        """The first message on a new stream."""

    def connected(self, welcome: Welcome, outbox: Outbox) -> None:
        """A stream is open. Messages in the outbox are sent on it."""

    def disconnected(self) -> None:
        """The stream has closed or broken."""

    def unreached(self) -> None:
        """An attempt to open a stream has failed, and others follow."""

    def received(self, assembler: Assembler, packet: Packet) -> bool:
        """A packet has arrived, for the assembler of its stream. Returns false: the stream goes on."""

    def gave_up(self, error: PsError) -> None:
        """The link opens no further stream, for this reason."""


class _Moved(NamedTuple):
    """Where a session has moved to. The gRPC stream may stay beside it, to notice that the owner is gone."""

    connection: Connection
    welcome: Welcome
    beside_stream: bool = False


class Link:
    """Holds one stream to an owner at a time, and tells a listener."""

    def __init__(self, connector: Connector, settings: Settings, listener: Listener) -> None:
        self._connector = connector
        self._settings = settings
        self._listener = listener
        self._greeted = False
        self._presence = Presence(connector.address, settings.on_state)
        self._task: asyncio.Task[None] | None = None
        self._no_direct_before = 0.0
        self._hurry = asyncio.Event()
        self._is_stopped = False
        # When the last direct connections broke.
        self._breaks: deque[float] = deque(maxlen=_MOST_BREAKS)

    @property
    def follows(self) -> bool:
        """Whether the owner is looked for at each dial, so that it may be elsewhere the next time."""
        return isinstance(self._connector, FollowingConnector)

    def start(self) -> None:
        """Begins to connect."""
        # In an empty context: the deadline and the pass of the task that opens a session do not apply to it.
        self._task = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())

    async def give_up(self, error: PsError) -> None:
        """Ends the stream for this reason, and opens no further one."""
        self._gave_up(error)
        await self.stop()

    def try_now(self) -> None:
        """Tries to open a stream at once, if there is none. An attempt that is under way does not count."""
        self._hurry.set()

    async def stop(self) -> None:
        """Ends the stream. Calling it again does nothing."""
        self._is_stopped = True
        self._presence.stop()
        try:
            if self._task is not None:
                await tasks.end(self._task)
        finally:
            await self._connector.close()

    async def _run(self) -> None:
        try:
            await self._keep_connected()
        except PsError as error:
            self._gave_up(error)
        except Exception as error:
            _log.exception("the link to %s failed", self._connector.address)
            self._gave_up(UnavailableError(f"the link to {self._connector.address} failed: {error!r}"))

    def _gave_up(self, error: PsError) -> None:
        self._presence.lost(str(error))
        self._listener.gave_up(error)

    async def _keep_connected(self) -> None:
        """Opens a stream again each time it breaks. `PsError` if the owner refuses, or cannot be reached in time."""
        loop = asyncio.get_running_loop()
        patience, delay, broken_since = self._settings.connect_timeout, _FIRST_DELAY, loop.time()
        self._presence.away(patience)
        connecting = True
        while True:
            self._hurry.clear()
            reason = await self._connect_once(loop.time() - broken_since)
            if connecting and reason == HTTP_SERVER:
                raise UnavailableError(f"no owner is at {self._connector.address}: {reason}")
            if not self._greeted:
                if not self._hurry.is_set():
                    self._listener.unreached()
            else:
                self._greeted = connecting = False
                patience, delay, broken_since = self._settings.reconnect_timeout, _FIRST_DELAY, loop.time()
            left = patience - (loop.time() - broken_since)
            if left <= 0:
                raise UnavailableError(
                    f"no owner could be reached at {self._connector.address} for {patience:g} s ({reason}); "
                    "is it running, and is the address right?"
                )
            self._presence.away(patience, reason)
            # The last try is made when the time is over.
            pause = min(delay * random.uniform(0.5, 1.0), left)
            # For people `Presence` tells it, once.
            _log.debug("no stream to %s (%s); next try in %.2f s", self._connector.address, reason, pause)
            # Not `asyncio.wait_for`: in Python 3.11 it drops the cancellation by `stop` if it comes with `try_now`.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._hurry.wait()
            delay = min(2 * delay, _LONGEST_DELAY)

    async def _connect_once(self, waited: float) -> str:
        """Holds one stream until it breaks; returns why it did."""
        patience = max(self._settings.connect_timeout - waited, 1.0)
        try:
            async with AsyncExitStack() as stack:
                try:
                    connection = await self._connector.connect()
                finally:
                    self._presence.address = self._connector.address
                stack.push_async_callback(connection.close)
                async with asyncio.timeout(patience):
                    welcome = await self._greet(connection)
                # Bounded by itself: a session that finds no faster connection stays on this one.
                moved = await self._move(welcome)
                if moved is not None:
                    # Whatever happens while the stream is closed, the new connection is closed in the end.
                    stack.push_async_callback(moved.connection.close)
                    if moved.beside_stream:
                        ending = asyncio.create_task(_end_with(connection, moved.connection))
                        stack.push_async_callback(tasks.end, ending)
                    else:
                        await connection.close()
                    connection, welcome = moved.connection, moved.welcome
                try:
                    await self._converse(connection, welcome)
                except ConnectionBroken:
                    if moved is not None and moved.beside_stream:
                        self._note_break()
                    raise
                except asyncio.CancelledError:
                    if not self._is_stopped:
                        await self._leave()
                    raise
        except ConnectionBroken as error:
            return str(error)
        except TimeoutError:
            return "it does not answer"
        return "the owner closed the stream"

    async def _leave(self) -> None:
        """Tells the owner that the trainer goes: the event loop ends, and the program has not closed its client. All
        tasks are cancelled, and those of gRPC with them, so this is said on a stream of its own."""
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                connection = await self._connector.connect()
                try:
                    await self._greet(connection)
                    await connection.send(Packet(Frame(goodbye=Goodbye())))
                    await connection.receive()  # the owner closes the stream once it has read that
                finally:
                    await connection.close()
        except Exception as error:
            _log.debug("the owner at %s was not told that the trainer goes: %r", self._connector.address, error)

    def _note_break(self) -> None:
        """Notes that a direct connection broke, and uses gRPC for a while if that happens again and again."""
        now = asyncio.get_running_loop().time()
        self._breaks.append(now)
        if len(self._breaks) == _MOST_BREAKS and now - self._breaks[0] < _NO_DIRECT_SECONDS:
            _log.warning(
                "direct connections to %s break; its session stays on gRPC for a while", self._connector.address
            )
            self._no_direct_before = now + _NO_DIRECT_SECONDS

    async def _move(self, welcome: Welcome) -> _Moved | None:
        """Opens a faster connection that the owner offers; None if there is none, so that the session stays on gRPC."""
        moved = None
        if self._settings.shared_memory and welcome.HasField("shared_memory") and not descriptors.shortage():
            opening = self._connector.connect_shared_memory(welcome.shared_memory, welcome.max_message_bytes)
            moved = await self._moved(welcome, opening, welcome.shared_memory.token)
        now = asyncio.get_running_loop().time()
        if moved is None and self._settings.direct and welcome.HasField("direct") and now >= self._no_direct_before:
            # Until it has worked.
            self._no_direct_before = now + _NO_DIRECT_SECONDS
            moved = await self._moved(welcome, self._connector.connect_direct(welcome.direct))
            if moved is not None:
                moved = moved._replace(beside_stream=True)
                self._no_direct_before = 0.0
        return moved

    async def _moved(
        self, welcome: Welcome, opening: Awaitable[Connection | None], token: bytes = b""
    ) -> _Moved | None:
        """Opens a connection and says hello there; None if that fails, or there is no such connection."""
        try:
            connection = await opening
            if connection is None:
                return None
            try:
                async with asyncio.timeout(_MOVE_PATIENCE):
                    resumed = await self._greet(connection, welcome, token)
                if resumed.incarnation != welcome.incarnation:
                    raise ConnectionBroken("another owner has answered")
            except BaseException:
                await connection.close()
                raise
        except (ConnectionBroken, PsError, TimeoutError) as error:
            _log.info("%s stays on gRPC: %s", self._connector.address, str(error) or "no answer")
            return None
        # The welcome on the first stream still counts, because it may say that the session was lost.
        resumed.resumed, resumed.why_lost = welcome.resumed, welcome.why_lost
        return _Moved(connection, resumed)

    async def _greet(self, connection: Connection, first_welcome: Welcome | None = None, token: bytes = b"") -> Welcome:
        hello = self._listener.hello()
        hello.host = host_id() if self._settings.shared_memory else ""
        if first_welcome is not None:
            hello.incarnation = first_welcome.incarnation
            hello.shared_memory_token = token
        await connection.send(Packet(Frame(hello=hello)))
        first = await connection.receive()
        if first is None:
            raise ConnectionBroken("the owner closed the stream at once")
        if first.frame.HasField("refusal"):
            error = errors.from_message(first.frame.refusal.error)
            if isinstance(error, UnavailableError) or (self.follows and isinstance(error, _ELSEWHERE)):
                raise ConnectionBroken(str(error))
            raise error
        if not first.frame.HasField("welcome"):
            raise InvalidArgumentError(f"{self._connector.address} does not speak the owner's protocol")
        return first.frame.welcome

    async def _converse(self, connection: Connection, welcome: Welcome) -> None:
        self._greeted = True
        self._presence.connected()
        outbox = Outbox()
        # The owner's own limits bound the messages that it sends, and its budget all of them together.
        assembler = Assembler(welcome.max_message_bytes)
        self._listener.connected(welcome, outbox)
        writer = asyncio.create_task(_drain(outbox, connection))

        try:
            await connection.deliver(partial(self._listener.received, assembler), assembler.place)
        except InvalidArgumentError as error:
            # This stream cannot be used any more; the session may continue on another.
            raise ConnectionBroken(f"the owner sent something that does not fit: {error}") from error
        finally:
            writer.cancel()
            self._listener.disconnected()
            # Not `await writer`, which could not tell a cancellation of this task from one of the writer.
            await asyncio.wait([writer])
            if not writer.cancelled():
                writer.exception()


async def _end_with(stream: Connection, connection: Connection) -> None:
    """Closes a connection when the stream beside it has ended."""
    try:
        with suppress(ConnectionBroken):
            while await stream.receive() is not None:
                pass
        # What has arrived on the connection is read before.
        await asyncio.sleep(_END_SECONDS)
        await connection.close()
    except Exception:
        _log.exception("the stream beside a direct connection failed")


async def _drain(outbox: Outbox, connection: Connection) -> None:
    try:
        await outbox.drain(connection)
    except ConnectionBroken:
        raise
    except Exception:
        # Without a writer every later request would wait for ever, so the link opens a new stream.
        _log.exception("a connection could not be written to")
        await connection.close()
