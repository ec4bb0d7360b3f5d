"""What several integration tests share: owners with more classes, connectors, and looking until something is so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.rpc.servicer import Servicer
from ps_service.server import Server
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.schedulers import HostedScheduler
from ps_wire.connections.connection import Connection, ConnectionBroken, Connector
from ps_wire.connections.frames import Packet
from ps_wire.limits import PROTOCOL, Limits
from ps_wire.refs import new_trainer_id
from ps_wire.status import OwnerStatus
from ps_wire.v1.frames_pb2 import DirectOffer, Frame, Hello, SharedMemoryOffer
from tests import hosted_models
from tests.allowed import allowed
from tests.integration import wire_models
from tests.waiting import pauses
from trainer_client.transport.in_process import MemoryConnector

COUNTER = "tests.hosted_models.Counter"
GATE = "tests.hosted_models.Gate"
AFFINE = "tests.hosted_models.Affine"
MODELS = "tests.integration.wire_models"


def engine(name: str = "ps0", limits: Limits | None = None, threads: int = 0, spare: int = 0) -> Engine:
    """An owner that hosts the classes of both test modules."""
    return Engine(
        name, allowed(hosted_models, wire_models), limits=limits or Limits(), threads=threads, spare_threads=spare
    )


@asynccontextmanager
async def serving(limits: Limits | None = None, threads: int = 0, listen: str = "127.0.0.1:0") -> AsyncIterator[Server]:
    """An owner called ps0, in this process, over real gRPC."""
    async with Server(engine(limits=limits, threads=threads), listen, direct_port=0) as server:
        yield server


@dataclass(frozen=True, slots=True)
class MemoryOwner:
    """An owner without a socket."""

    engine: Engine
    servicer: Servicer

    def connector(self) -> MemoryConnector:
        return MemoryConnector(self.servicer.serve)


@asynccontextmanager
async def in_memory(limits: Limits | None = None) -> AsyncIterator[MemoryOwner]:
    """An owner called ps0, reached inside this process."""
    owner = engine(limits=limits)
    servicer = Servicer(owner)
    try:
        yield MemoryOwner(owner, servicer)
    finally:
        servicer.close()
        await asyncio.to_thread(owner.close)


async def until(ps: tc.Client, so: Callable[[OwnerStatus], bool], owner: str = "") -> OwnerStatus:
    """The first status of an owner in which something is so; asks again and again, for at most a minute."""
    last = asyncio.get_running_loop().time() + 60
    for pause in pauses():
        status = await ps.status(owner)
        if so(status):
            return status
        if asyncio.get_running_loop().time() > last:
            break
        await asyncio.sleep(pause)
    raise AssertionError(f"it never came to be: {status}")


def fingerprint(owner: Engine) -> dict[str, Any]:
    """Everything an owner holds, bit for bit."""
    found: dict[str, Any] = {"contexts": len(owner.contexts), "names": sorted(owner.registry._names)}
    for hosted in owner.registry.objects():
        state: Any = None
        if isinstance(hosted.value, torch.nn.Module):
            state = hosted.value.state_dict()
        elif isinstance(hosted.value, HostedOptimizer):
            state = (hosted.value.version, hosted.value.state_dict())
        elif isinstance(hosted.value, HostedScheduler):
            state = {key: repr(value) for key, value in vars(hosted.value.scheduler).items()}
        elif isinstance(hosted.value, hosted_models.Counter):
            state = hosted.value.value
        found[hosted.ref.object_id] = (hosted.class_name, hosted.name, hosted.references, bits(state))
    return found


def bits(value: Any) -> Any:
    """The same with the bytes of tensors in their place, so that == compares bit for bit."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().view(-1)
        return (value.dtype, tuple(value.shape), flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    if isinstance(value, dict):
        return [(key, bits(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value


class HandMade:
    """A trainer's end of a stream, frame by frame: for what our own client would never send."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.trainer = new_trainer_id()

    @classmethod
    async def greeted(cls, connector: Connector) -> HandMade:
        """One that has said hello, and was welcomed."""
        stream = cls(await connector.connect())
        await stream.send(Frame(hello=stream.hello()))
        assert (await stream.receive()).HasField("welcome")
        return stream

    def hello(self, **changes: Any) -> Hello:
        return Hello(**{"protocol": PROTOCOL, "trainer": self.trainer, **changes})

    async def send(self, frame: Frame, payload: bytes = b"") -> None:
        await self.connection.send(Packet(frame, (memoryview(payload),) if payload else ()))

    async def receive(self) -> Frame:
        packet = await self.connection.receive()
        assert packet is not None, "the owner closed the stream"
        return packet.frame

    async def ended(self) -> bool:
        """Waits for what comes next, which is to be the end of the stream."""
        try:
            return await self.connection.receive() is None
        except ConnectionBroken:
            return True


class Cuttable:
    """A connector whose connections can be cut as by a pulled cable, without goodbye, and plugged in again."""

    def __init__(self, inner: Connector) -> None:
        self._inner = inner
        self._open: list[Connection] = []
        self._plugged = True
        self.connections = 0
        self.refused = asyncio.Event()

    @property
    def address(self) -> str:
        return self._inner.address

    async def connect(self) -> Connection:
        if not self._plugged:
            self.refused.set()
            raise ConnectionBroken("the cable is out")
        self.connections += 1
        connection = await self._inner.connect()
        self._open.append(connection)
        return connection

    async def connect_shared_memory(self, offer: SharedMemoryOffer, max_message_bytes: int) -> Connection | None:
        shared_memory = await self._inner.connect_shared_memory(offer, max_message_bytes)
        if shared_memory is not None:
            self._open.append(shared_memory)
        return shared_memory

    async def connect_direct(self, offer: DirectOffer) -> Connection | None:
        direct = await self._inner.connect_direct(offer)
        if direct is not None:
            self._open.append(direct)
        return direct

    async def close(self) -> None:
        await self._inner.close()

    async def cut(self) -> None:
        """Breaks what is open; the next connection may be made at once."""
        # All at once: a stream waits a second for the owner's end of it, which comes with that of a faster connection.
        opened, self._open = self._open, []
        await asyncio.gather(*(connection.close() for connection in opened))

    async def unplug(self) -> None:
        """Breaks what is open; returns once the client has noticed, and was refused another."""
        self._plugged = False
        self.refused.clear()
        await self.cut()
        await self.refused.wait()

    def plug_in(self) -> None:
        self._plugged = True
