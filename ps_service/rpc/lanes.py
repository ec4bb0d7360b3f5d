"""Lanes: the owner's side door for trainers of the same host.

A session always begins at the gRPC door. If the trainer says it runs on this host, the answer offers a lane: the name
of a Unix socket and a token that is good once. The socket has an abstract name, so nothing is left in any file system
however the owner ends; who may come in is decided by the peer's user, which the kernel vouches for, and the token.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Final

from ps_service.rpc.peer_process import PeerProcess, State
from ps_wire import descriptors, forks
from ps_wire.hosts import host_id
from ps_wire.lane import LaneConnection
from ps_wire.limits import Limits
from ps_wire.traffic import Traffic
from ps_wire.v1.frames_pb2 import Hello, LaneOffer

_log = logging.getLogger("ps_service.lanes")

_CREDENTIALS: Final = struct.Struct("3i")
_TOKEN_SECONDS: Final = 30.0

_LOOK_SECONDS: Final = 2.5
"""How often the processes at the other ends are looked at."""

_STOPPED_SECONDS: Final = 12.5
"""How long a trainer may be stopped before its lane ends: with the time until one looks, as long as gRPC waits."""


class LaneDoor:
    """Listens for lanes and offers them.

    Args:
        limits: Of messages and of shared memory.
        serve: Holds the owner's end of a lane until it ends.
        traffic: Where the bytes of all lanes are counted.
    """

    def __init__(
        self, limits: Limits, serve: Callable[[LaneConnection], Awaitable[None]], traffic: Traffic | None = None
    ) -> None:
        self._limits = limits
        self._traffic = traffic
        self._serve = serve
        self._socket: socket.socket | None = None
        self._name = b""
        self._tokens: dict[bytes, tuple[bytes, float]] = {}
        self._lanes: dict[asyncio.Task[None], LaneConnection] = {}
        self._processes: dict[LaneConnection, PeerProcess] = {}
        self._stopped: dict[LaneConnection, float] = {}
        self._looking: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Begins to listen, if this system can have lanes."""
        if not host_id():
            return
        self._name = b"ps-lane-" + secrets.token_hex(16).encode()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._socket.bind(b"\0" + self._name)
        self._socket.listen(128)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)
        forks.put_away_in_children(self)

    def forked(self) -> None:
        """In a forked child: closes its copy of the socket only, so that nothing listens once the parent is gone."""
        if self._socket is not None:
            os.close(self._socket.detach())
            self._socket = None

    async def close(self) -> None:
        """Ends every lane."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._looking is not None:
            self._looking.cancel()
        for task in list(self._lanes):
            task.cancel()
        if self._lanes:
            await asyncio.wait(list(self._lanes))

    def offer(self, hello: Hello) -> LaneOffer | None:
        """What to tell a trainer at the gRPC door; None if it cannot have a lane."""
        if self._socket is None or hello.host != host_id() or descriptors.shortage():
            return None
        now = asyncio.get_running_loop().time()
        self._tokens = {token: known for token, known in self._tokens.items() if known[1] > now}
        token = secrets.token_bytes(32)
        self._tokens[token] = (hello.trainer, now + _TOKEN_SECONDS)
        return LaneOffer(socket=self._name, token=token, max_segment_bytes=self._limits.max_segment_bytes)

    def admits(self, hello: Hello) -> bool:
        """Whether a trainer that came through this door may stay; its token is used up."""
        trainer, until = self._tokens.pop(hello.lane_token, (b"", 0.0))
        return trainer == hello.trainer and asyncio.get_running_loop().time() < until

    @property
    def count(self) -> int:
        """How many lanes are open."""
        return len(self._lanes)

    @property
    def shared_bytes(self) -> int:
        """Shared memory this owner writes to, on all lanes."""
        return sum(lane.shared_bytes for lane in self._lanes.values())

    def peer_of(self, lane: LaneConnection) -> str:
        """Who is at the other end, for people."""
        process = self._processes.get(lane)
        return "" if process is None else f"process {process.pid}"

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            peer, _ = self._socket.accept()
        except OSError as error:
            _log.warning("a lane could not be accepted: %s", error)
            self._pause()
            return
        process = self._admitted(peer)
        if process is None:
            peer.close()
            return
        lane = LaneConnection(peer, self._limits.max_message_bytes, self._limits.max_segment_bytes, self._traffic)
        task = asyncio.create_task(self._hold(lane))
        self._lanes[task] = lane
        self._processes[lane] = process
        task.add_done_callback(self._ended)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _admitted(self, peer: socket.socket) -> PeerProcess | None:
        """The process at the other end, if it may have a lane."""
        pid, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user != os.geteuid():
            _log.warning("user %d was refused at the lane door", user)
            return None
        try:
            return PeerProcess(pid)
        except LookupError as error:
            # Nobody would notice that it has stopped. Its stream does, where it goes on.
            _log.info("a trainer gets no lane: %s", error)
            return None

    def _ended(self, task: asyncio.Task[None]) -> None:
        lane = self._lanes.pop(task)
        del self._processes[lane]
        self._stopped.pop(lane, None)

    def _look(self) -> None:
        """Cuts the lanes of processes that are gone, or have been stopped for long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for lane, process in self._processes.items():
            state = process.state
            if state is State.STOPPED and now - self._stopped.setdefault(lane, now) >= _STOPPED_SECONDS:
                lane.cut(f"process {process.pid} has been stopped for {_STOPPED_SECONDS:g} s")
            elif state is State.GONE:
                lane.cut(f"process {process.pid} is gone, although its socket is open")
            elif state is State.ALIVE:
                self._stopped.pop(lane, None)
        self._looking = loop.call_later(_LOOK_SECONDS, self._look) if self._processes else None

    def _pause(self) -> None:
        """Stops accepting for a second: without descriptors the door would ring without end."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        loop.call_later(1.0, self._go_on)

    def _go_on(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    async def _hold(self, lane: LaneConnection) -> None:
        try:
            await self._serve(lane)
        finally:
            await lane.close()
