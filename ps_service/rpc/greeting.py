"""The beginning of a stream: the trainer says who it is, and the owner opens its session."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ps_service.access.identities import caller
from ps_service.sessions.effects import synced
from ps_service.sessions.gate import Gate
from ps_service.sessions.sessions import Process
from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.direct import DirectConnection
from ps_wire.errors import InvalidArgumentError, ReplacedError, UnavailableError, UnknownNameError
from ps_wire.limits import PROTOCOL
from ps_wire.refs import ContextId
from ps_wire.release import RELEASE
from ps_wire.shared_memory import descriptors
from ps_wire.v1.frames_pb2 import Frame, Hello, Welcome

if TYPE_CHECKING:
    from ps_service.access.identities import Identity
    from ps_service.engine import Engine
    from ps_service.rpc.direct import DirectListener
    from ps_service.rpc.listener import Listener
    from ps_service.rpc.session_handler import SessionHandler
    from ps_service.rpc.session_handlers import SessionHandlers
    from ps_service.rpc.shared_memory import SharedMemoryListener
    from ps_wire.connections.connection import Connection

_LONGEST_NAME: Final = 128
"""Most characters that are kept of the names of a trainer's program and host."""


class Greeted(NamedTuple):
    """The session, which turn the stream has in it, and whether the trainer may move to a faster connection."""

    session_handler: SessionHandler
    turn: int
    may_move: bool


class Greeting:
    """Answers the first frame of each stream."""

    def __init__(
        self,
        engine: Engine,
        session_handlers: SessionHandlers,
        shared_memory: SharedMemoryListener,
        direct: DirectListener,
    ) -> None:
        self._engine = engine
        self._session_handlers = session_handlers
        self._shared_memory = shared_memory
        self._direct = direct

    async def answer(self, connection: Connection, listener: Listener[Any, Any] | None, certificate: str) -> Greeted:
        """Opens the session, and welcomes the trainer. The connection was accepted by a listener, or is that of gRPC.
        Raises `PsError` if the trainer is refused, and `ConnectionBroken` if it has gone."""
        hello = await _first(connection)
        self._check(hello)
        identity = self._identity(hello, connection, listener)
        session_handler, resumed = self._open(hello, identity)
        session = session_handler.session
        session.process, session.tells_last_pass = _process(hello), hello.HasField("last_pass")
        if listener is None:
            session.certificate = certificate
        turn = session_handler.stream.greeted(connection if isinstance(connection, DirectConnection) else None)
        last_number = hello.last_number if hello.HasField("last_number") else math.inf
        self._engine.reply_cache.keep_only(hello.trainer, hello.unanswered, last_number)
        welcome = self._welcome(hello, resumed)
        if listener is None:
            self._offer(welcome, hello, identity)
        log = self._engine.durability.log
        if log is not None and log.acknowledges:
            await synced(log, log.came_at)  # or the session would be lost with the power
        await connection.send(Packet(Frame(welcome=welcome)))
        return Greeted(session_handler, turn, welcome.HasField("shared_memory") or welcome.HasField("direct"))

    def _check(self, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            raise InvalidArgumentError(
                f"this owner speaks version {PROTOCOL} of the protocol, the trainer version {hello.protocol}; "
                "install the same release on both sides"
            )
        if len(hello.trainer) != 16:
            raise InvalidArgumentError("a trainer's id has 16 bytes")
        engine = self._engine
        if hello.owner not in ("", engine.name):
            raise UnknownNameError(f"this is owner {engine.name!r}, and not {hello.owner!r}")
        if engine.gate.why:
            raise ReplacedError(engine.gate.why)
        if not engine.fence.is_sure():
            raise UnavailableError(engine.fence.doubt.format(engine.name))
        known = engine.sessions.get(hello.trainer) is not None
        # A trainer that reconnects while the owner drains may still have an open pass.
        may_return = known and hello.incarnation in engine.incarnations and engine.gate.state is Gate.State.DRAINING
        if engine.draining and not may_return:
            raise UnavailableError(f"owner {engine.name!r} is shutting down")
        if not known and (reason := descriptors.shortage()):
            # Connected trainers need the descriptors that are left.
            raise UnavailableError(f"owner {engine.name!r} takes no new trainers: {reason}")

    def _identity(self, hello: Hello, connection: Connection, listener: Listener[Any, Any] | None) -> Identity:
        """Who the trainer is: gRPC has asked for it, and other connections begin with a token of the welcome there."""
        identity: Identity | None = caller.get()
        if listener is not None:
            identity = listener.admitted(connection, hello)
            identity = identity and self._engine.access.current(identity)
        if identity is None:
            assert listener is not None
            raise InvalidArgumentError(f"{listener.connection} opens with the token that was offered with it, once")
        return identity

    def _open(self, hello: Hello, identity: Identity) -> tuple[SessionHandler, bool]:
        """Opens the session; returns whether it goes on where it was."""
        engine, trainer = self._engine, hello.trainer
        namespace = engine.belongings.enter(identity, hello.namespace)
        engine.sessions.check(trainer, identity)
        before = engine.sessions.get(trainer)
        engine.requests.check_stays(before, namespace)
        # One that moves to another connection, or comes back, has a stream already.
        more = 0 if before is not None and before.streams else 1
        engine.sessions.admit(trainer, identity, namespace, more)
        resumed = before is not None and hello.incarnation in engine.incarnations and not self._has_lost(hello)
        if hello.incarnation and before is not None and not resumed:
            self._session_handlers.end(self._session_handlers.open(trainer, identity))
        session_handler = self._session_handlers.open(trainer, identity)
        engine.sessions.enter(session_handler.session, identity, namespace)
        engine.budget.regroup(trainer)
        if resumed and hello.incarnation in engine.incarnations.killed:
            engine.contexts.lose_up_to(ContextId(trainer, hello.last_pass))
        return session_handler, resumed

    def _has_lost(self, hello: Hello) -> bool:
        """Whether this owner has started without changes that it had told the trainer of, because its machine has
        crashed."""
        engine = self._engine
        is_earlier = hello.incarnation in engine.incarnations.earlier
        return is_earlier and hello.position > engine.durability.began

    def _welcome(self, hello: Hello, resumed: bool) -> Welcome:
        engine, limits = self._engine, self._engine.limits
        why_lost = "" if resumed else engine.sessions.take_why_lost(hello.trainer)
        if self._has_lost(hello):
            why_lost = "it has restarted without the last changes that it had acknowledged: they were not on its disk"
        return Welcome(
            owner=engine.name,
            incarnation=engine.incarnations.current,
            resumed=resumed,
            lease_seconds=limits.lease_seconds,
            max_message_bytes=limits.max_message_bytes,
            max_in_flight=limits.max_in_flight,
            max_session_bytes=limits.max_session_bytes,
            version=RELEASE,
            device=str(engine.device),
            prepares=engine.durability.log is not None,
            why_lost=why_lost,
        )

    def _offer(self, welcome: Welcome, hello: Hello, identity: Identity) -> None:
        """Offers connections that are faster than gRPC."""
        if (shared_memory := self._shared_memory.offer(hello, identity)) is not None:
            welcome.shared_memory.CopyFrom(shared_memory)
        if (direct := self._direct.offer(hello, identity)) is not None:
            welcome.direct.CopyFrom(direct)


async def _first(connection: Connection) -> Hello:
    """What the trainer says first."""
    first = await connection.receive()
    if first is None:  # a trainer that was about to connect, and has ended
        raise ConnectionBroken("the stream has ended before its first frame")
    if not first.frame.HasField("hello"):
        raise InvalidArgumentError("a stream begins with Hello")
    if connection.is_over:  # the trainer has given it up, and goes on with the stream before
        raise ConnectionBroken("the stream has ended before it was welcomed")
    return first.frame.hello


def _process(hello: Hello) -> Process:
    """What a trainer says of its process, fit for a terminal."""
    program, host, member = (
        "".join(each if each.isprintable() else "?" for each in text[:_LONGEST_NAME])
        for text in (hello.program, hello.host_name, hello.member)
    )
    return Process(program, host, hello.process_id, member)
