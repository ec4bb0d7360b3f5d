"""Sessions that end while a request of theirs still runs: the owner keeps nothing of what the request does then."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.group.directory import Directory
from ps_service.requests.context import RequestContext
from ps_service.server import Server
from ps_service.training import pushes
from ps_wire.codec.values import Encoder
from ps_wire.connections.connection import Connection
from ps_wire.connections.frames import Packet
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Frame, Goodbye, Request
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests.integration.support import COUNTER, HandMade, in_memory, serving
from tests.integration.wire_models import SlowToMake
from tests.waiting import until
from trainer_client.transport.in_process import MemoryConnector


class Held:
    """Holds the first call of a function, once it is set in its place, until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: Any, name: str) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self._function = getattr(of, name)

        # A function, so that it can be a method.
        def held(*args: Any, **kwargs: Any) -> Any:
            self.entered.set()
            assert self.go_on.wait(30)
            return self._function(*args, **kwargs)

        monkeypatch.setattr(of, name, held)


@asynccontextmanager
async def training() -> AsyncIterator[tuple[Engine, HandMade, tc.RemoteModule, tc.DistributedOptimizer]]:
    async with in_memory() as owner, tc.connect(owner.connector()) as ps:
        net = await ps.module("torch.nn.Linear", 2, 1, name="net", seed=0)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, name="opt")
        yield owner.engine, await HandMade.greeted(owner.connector()), net, opt


async def ended_meanwhile(engine: Engine, stream: HandMade, held: Held, request: Request) -> None:
    """Sends a request, ends its session while it is held, and waits until it has ended."""
    await stream.send(Frame(number=1, request=request))
    await until(held.entered.is_set)
    await stream.send(Frame(goodbye=Goodbye()))
    await until(lambda: engine.sessions.get(stream.trainer) is None)
    held.go_on.set()
    await until(lambda: not engine.compute.lost)
    assert engine.counters.running == 0


async def test_no_context_is_opened_for_a_call_whose_session_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async with training() as (engine, stream, net, _):
        held = Held(monkeypatch, RequestContext, "read_arguments")
        call = pb.CallRequest(target=net.ref.to_message(), call=1, training=True)
        call.context.trainer, call.context.number = stream.trainer, 1
        Encoder(None).encode_into(call.args, (torch.ones(4, 2, requires_grad=True),))
        await ended_meanwhile(engine, stream, held, Request(call=call))
        assert not engine.contexts.all() and not engine.contexts.over()


async def test_no_context_is_opened_for_gradients_whose_session_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async with training() as (engine, stream, net, opt):
        held = Held(monkeypatch, pushes, "read")
        optimizer = opt.remotes["ps0"].handle.ref.to_message()
        add = pb.AddGradientsRequest(target=net.ref.to_message(), optimizer=optimizer, positions=[0], steps=[0])
        add.context.trainer, add.context.number = stream.trainer, 1
        Encoder(None).encode_into(add.gradients, [torch.ones(1, 2)])
        await ended_meanwhile(engine, stream, held, Request(add_gradients=add))
        assert not engine.contexts.all() and not engine.contexts.over()


@pytest.mark.parametrize("operation", ["enter", "rendezvous"])
async def test_a_member_whose_session_has_ended_does_not_enter(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    requests = {
        "enter": Request(register=pb.RegisterRequest(name="anna", address="127.0.0.1:1")),
        "rendezvous": Request(rendezvous=pb.RendezvousRequest(key="k", name="anna", names=["anna", "bert"])),
    }
    async with training() as (engine, stream, _, _):
        held = Held(monkeypatch, Directory, operation)
        await ended_meanwhile(engine, stream, held, requests[operation])
        assert not engine.directory.members()
        assert not engine.directory._waits and not engine.directory._rendezvous


async def test_what_a_unary_request_makes_after_the_end_of_its_session_is_freed() -> None:
    async with serving() as owner, grpc.aio.insecure_channel(owner.address) as channel:
        stream = await HandMade.greeted(MemoryConnector(owner.servicer.serve))
        request = pb.CreateRequest(class_name="tests.integration.wire_models.SlowToMake")
        making = OwnerStub(channel).Create(request, metadata=(("ps-trainer", stream.trainer.hex()),))
        await until(lambda: SlowToMake.entered.acquire(blocking=False))
        await stream.send(Frame(goodbye=Goodbye()))
        await until(lambda: owner.engine.sessions.get(stream.trainer) is None)
        SlowToMake.go_on.release()
        assert (await making).object.class_name.endswith("SlowToMake")
        await until(lambda: not len(owner.engine.registry))


class LateWelcome:
    """An owner's end of a connection, on which the welcome is sent once it may be."""

    def __init__(self, inner: Connection) -> None:
        self._inner = inner
        self.sending, self.may_send = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def send(self, packet: Packet) -> None:
        self.sending.set()
        await self.may_send.wait()
        await self._inner.send(packet)


async def test_a_stream_that_is_opened_while_its_session_ends_is_closed() -> None:
    async with in_memory() as owner:
        first = await HandMade.greeted(owner.connector())
        late: list[LateWelcome] = []

        async def serve(connection: Connection) -> None:
            late.append(LateWelcome(connection))
            await owner.servicer.serve(late[0])  # type: ignore[arg-type]

        # Its greeting ends the stream before, so the session is ended beside it, as at the end of a lease.
        second = HandMade(await MemoryConnector(serve).connect())
        await second.send(Frame(hello=first.hello()))
        await until(lambda: late and late[0].sending.is_set())
        handler = owner.servicer.session_handlers.open(first.trainer)
        owner.servicer.session_handlers.end(handler)
        late[0].may_send.set()
        assert (await second.receive()).HasField("welcome")
        assert await second.ended()
        assert len(owner.engine.sessions) == 0 and not owner.engine.budget._holdings


@pytest.mark.parametrize("read", ["before", "after", "never"])
async def test_a_reference_of_a_session_that_was_lost_is_not_given_back_to_the_next(read: str) -> None:
    async with in_memory() as owner, tc.connect(owner.connector()) as other, tc.connect(owner.connector()) as ps:
        shared = str(made := await other.create(COUNTER))
        (session,) = ps.sessions.values()
        attaching = ps.attach(shared)
        await until(attaching.done)
        old = [await attaching if read == "before" else attaching]
        del attaching
        owner.servicer.session_handlers.dismiss(owner.engine.sessions.open(ps.trainer))
        await until(lambda: session.losses)
        if read == "after":
            old = [await old[0]]
        again = await ps.attach(shared)
        (counter,) = owner.engine.registry.objects()
        assert counter.references == 2
        old.clear()
        gc.collect()
        del made
        await other.status()
        await until(lambda: counter.references < 2)
        await ps.status()
        assert counter.references == 1
        assert await again.add(1) == 1  # type: ignore[attr-defined]


async def test_a_client_is_closed_although_the_task_that_closes_it_is_cancelled(owner: Server) -> None:
    ps = await tc.connect(owner.address)
    closing = asyncio.ensure_future(ps.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await until(lambda: len(owner.engine.sessions) == 0)
