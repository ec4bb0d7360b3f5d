"""Records what a real trainer says to an owner: the valid exchange that the fuzzer changes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn, optim
from torch.nn.functional import mse_loss
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.server import Server
from ps_wire.connections import frames
from ps_wire.connections.frames import Packet
from ps_wire.v1.frames_pb2 import Frame
from tests.allowed import allowed
from tests.fuzz import hosted
from trainer_client.transport.faulty import Direction, Fault, FaultyConnector
from trainer_client.transport.grpc_stream import GrpcConnector

NAME: Final = "fuzz0000"
"""The beginning of the names of all objects: another one of the same length stands for it when it is sent again."""

_TRAINER: Final = b"recorded trainer"

_FIRST_ID: Final = 0xF022 << 112

_ID: Final = re.compile(rb"[0-9a-f]{32}")


def ids_in(data: bytes) -> list[bytes]:
    """The ids of objects in a message, in their order, each once."""
    return list(dict.fromkeys(_ID.findall(data)))


@dataclass
class Sent:
    """A frame of the trainer, its payload, and the ids that came with the answer."""

    frame: Frame
    payload: bytes
    ids: list[bytes] = field(default_factory=list)

    @property
    def operation(self) -> str:
        """The operation of a request; empty for another frame."""
        return self.frame.request.WhichOneof("operation") or "" if self.frame.HasField("request") else ""


@dataclass
class Recording:
    """All that a trainer has sent on its stream; the first is its greeting."""

    trainer: bytes
    sent: list[Sent]


class _Recorder:
    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self._by_number: dict[int, Sent] = {}

    def note(self, direction: Direction, count: int, packet: Packet) -> Fault:
        """A plan of the connector, which lets every packet pass."""
        payload = b"".join(packet.payload)
        if direction is Direction.TO_OWNER:
            frame = Frame()
            frame.CopyFrom(packet.frame)
            made = Sent(frame, payload)
            self.sent.append(made)
            if frame.HasField("request"):
                self._by_number[frame.number] = made
        elif packet.frame.HasField("reply") and packet.frame.number in self._by_number:
            self._by_number[packet.frame.number].ids = ids_in(packet.frame.SerializeToString())
        return Fault.NONE


async def record() -> Recording:
    """Runs an owner and a trainer in this process."""
    recorder = _Recorder()
    torch.manual_seed(7)
    async with Server(Engine("ps0", allowed(hosted), threads=2)) as owner:
        connector = FaultyConnector(GrpcConnector(owner.address), recorder.note)
        async with tc.connect(connector, shared_memory=False, direct=False) as ps:
            await _modules(ps)
            await _objects(ps)
            await _policies(ps)
            await _tables(ps)
            await ps.status()
    sent = [each for each in recorder.sent if not each.frame.HasField("goodbye")]
    return _alike(Recording(sent[0].frame.hello.trainer, sent))


def _alike(recording: Recording) -> Recording:
    """The recording with ids that are the same in each run, so that what was made of it can be sent again."""
    known = {recording.trainer: _TRAINER}
    made = []
    for each in recording.sent:
        for id in (*ids_in(each.frame.SerializeToString()), *each.ids):
            known.setdefault(id, b"%032x" % (_FIRST_ID + len(known)))
        data = each.frame.SerializeToString()
        for before, now in known.items():
            data = data.replace(before, now)
        made.append(Sent(Frame.FromString(data), each.payload, [known[id] for id in each.ids]))
    return Recording(_TRAINER, made)


async def _modules(ps: tc.Client) -> None:
    net = await ps.module("tests.fuzz.hosted.Net", 4, 2, name=f"{NAME}-net")
    linear = await ps.module(nn.Linear, 2, 3, name=f"{NAME}-linear")
    opt = await ps.optimizer(optim.SGD, [*net.parameters(), *linear.parameters()], name=f"{NAME}-opt", lr=0.1)
    schedule = await ps.scheduler(lr_scheduler.StepLR, opt, 2, name=f"{NAME}-schedule")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for i in range(3):
        async with ps.context() as ctx:
            x = torch.randn(3, 4, requires_grad=True)
            loss = mse_loss(await linear(net(x) if i else await net(x)), torch.zeros(3, 3))
            await ctx.backward(scaler.scale(loss) if i == 2 else loss)
            await ctx.get_gradients()
            await ctx.clip_grad_norm(net.parameters(), 0.5)
            await opt.step(ctx, scaler) if i == 2 else await opt.step(ctx)
    await schedule.step()
    await opt.set_options(lr=0.05)
    await linear.requires_grad_(False)
    await linear.requires_grad_(True)
    await net.call("both", torch.ones(2, 4), scale=2.0)
    await linear.load_state_dict(await linear.state_dict())
    await opt.load_state_dict(await opt.state_dict())
    await linear.parameter("weight").to_here()
    own = await ps.optimizer(optim.SGD, linear.parameters(), name=f"{NAME}-own", lr=0.1)
    replica = await linear.replica(compress=tc.codecs.TopK(0.5))
    await replica.pull()
    replica(torch.ones(1, 2)).sum().backward()
    await replica.push(own)


async def _objects(ps: tc.Client) -> None:
    echo = await ps.create("tests.fuzz.hosted.Echo", 1, name=f"{NAME}-echo")
    values: list[Any] = [1, -1, 2**70, 0.5, "x", b"y", None, (1, [2]), {"a": {(1, 2): 3}}, slice(1, 2), torch.float16]
    await echo.call("echo", *values, torch.arange(4), torch.eye(3).to_sparse(), half=torch.ones(2, 2).half())
    await echo.call("echo", torch.quantize_per_tensor(torch.ones(5), 0.5, 1, torch.qint8), torch.zeros(6000))
    await (await echo.remote("hand_out", [1, 2])).to_here()
    await ps.call("torch.add", torch.ones(2), torch.ones(2))
    await ps.call("torch.cat", [torch.ones(2, 2), torch.ones(1, 2)], dim=0)
    await ps.attach(f"{NAME}-echo")
    await ps.create("tests.fuzz.hosted.Echo", 1, name=f"{NAME}-gone")
    await ps.delete(f"{NAME}-gone")


async def _policies(ps: tc.Client) -> None:
    policies = tc.policies
    for i, policy in enumerate(
        (
            policies.Async(stale=policies.Scale()),
            policies.Sync(trainers=1),
            policies.BoundedStaleness(2),
            policies.Quorum(2),
        )
    ):
        net = await ps.module(nn.Linear, 2, 2, name=f"{NAME}-net{i}")
        opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1, policy=policy)
        for _ in range(2):
            async with ps.context() as ctx:
                loss = (await net(torch.ones(1, 2))).sum()
                await ctx.backward(loss)
                await opt.step(ctx, values={"loss": loss.item()})
        await opt.set_policy(policies.Quorum(1, of=1))
        await opt.leave()


async def _tables(ps: tc.Client) -> None:
    tables = tc.tables
    evicted = tables.Eviction(ttl=60.0, at_capacity="least_recent")
    items = await ps.table(f"{NAME}-items", 4, optimizer=tables.RowWiseAdagrad(lr=0.1), evict=evicted, max_rows=50)
    plain = await ps.table(f"{NAME}-plain", 3, admit=tables.AfterSightings(2, default=0.0))
    few = await ps.table(f"{NAME}-few", 2, rows=20, optimizer=tables.LazyAdam(lr=0.1), init=tables.Normal(0.1))
    opt = await ps.optimizer(None, [items, plain, few])
    for i in range(3):
        async with ps.context() as ctx:
            ids = torch.arange(i * 5, i * 5 + 8)
            loss = (await items(ids)).sum() + (await plain(ids.view(2, 4))).sum() + (await few(ids % 20)).sum()
            loss = loss + (await items.bag(ids, torch.tensor([0, 3]))).sum()
            await ctx.backward(loss, step=opt)
    await items.upsert(torch.tensor([1, 100]), torch.randn(2, 4))
    await items.size()
    await items.evict(0.1)
    await items.remove(torch.tensor([1]))
    await few.clear()


def packed(sent: Sent) -> bytes:
    """The bytes of a frame and its payload."""
    return frames.serialize(Packet(sent.frame, (memoryview(sent.payload),) if sent.payload else ()))
