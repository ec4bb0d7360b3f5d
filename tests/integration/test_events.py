"""Tests what an owner tells of its trainers, objects and hosted code, in its status and its log."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket

import grpc.aio
import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_wire.limits import Limits
from ps_wire.status.parts import EventStatus
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests import waiting
from tests.conftest import StartOwner
from tests.integration.support import Cuttable, in_memory, until
from tests.transports import TRANSPORTS, over_each
from trainer_client.session import link
from trainer_client.transport.grpc_stream import GrpcConnector

MODELS = "tests.hosted_models"
COUNTER = f"{MODELS}.Counter"
GATE = f"{MODELS}.Gate"
pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Keeps what is logged from level INFO on."""
    caplog.set_level(logging.INFO, "ps_service")


def of_kind(owner: Server, *kinds: str) -> list[str]:
    return [each.text for each in owner.engine.events.latest() if each.kind in kinds]


async def until_told(owner: Server, kind: str, begin: str = "") -> str:
    def found() -> list[str]:
        return [each for each in of_kind(owner, kind) if each.startswith(begin)]

    await waiting.until(found, 0.005)
    return found()[0]


async def test_a_trainer_that_comes_and_leaves_is_told_once(owner: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with tc.connect(owner.address) as ps:
        (me,) = (await ps.status()).trainers
        assert (me.process_id, me.host_name) == (os.getpid(), socket.gethostname())
        assert me.name == f"{me.program}[{os.getpid()}]" and me.connected and me.last_seen_seconds < 20
    left = await until_told(owner, "left")
    (joined,) = of_kind(owner, "joined")
    who = f"trainer {me.id} ({me.program}, process {os.getpid()} on {socket.gethostname()}"
    assert joined.startswith(who) and " has connected over " in joined
    assert left.startswith(who) and left.endswith("has left")
    told = [each.getMessage() for each in caplog.records if each.name.startswith("ps_service")]
    assert [each for each in told if me.id in each] == [joined, left]


WORDS = {"grpc": "gRPC", "direct": "the direct port", "shared_memory": "shared memory"}


@over_each
async def test_a_trainer_is_told_with_the_transport_that_it_ends_up_with(owner: Server, transport: str) -> None:
    async with tc.connect(owner.address, **TRANSPORTS[transport]) as ps:
        (me,) = (await ps.status()).trainers
        (joined,) = of_kind(owner, "joined")
        assert me.transport == transport and joined.endswith(f" has connected over {WORDS[transport]}")
    await until_told(owner, "left")
    assert len(of_kind(owner, "joined")) == 1


@over_each
async def test_a_trainer_that_comes_back_is_told_with_the_transport_that_it_goes_on_with(
    owner: Server, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Cuttable(GrpcConnector(owner.address))
    monkeypatch.setattr(line, "connect_shared_memory", nowhere)
    monkeypatch.setattr(line, "connect_direct", nowhere)
    monkeypatch.setattr(link, "_NO_DIRECT_SECONDS", 0.0)
    async with tc.connect(line, **TRANSPORTS[transport]) as ps:
        counter = await ps.create(COUNTER)
        assert of_kind(owner, "joined")[0].endswith(" has connected over gRPC")
        monkeypatch.undo()
        await line.cut()
        assert await counter.add() == 1
        assert of_kind(owner, "back")[0].endswith(f" has connected again over {WORDS[transport]}")
        (me,) = (await ps.status()).trainers
        assert me.transport == transport


async def nowhere(*_: object) -> None:
    """No faster connection can be opened."""


async def test_a_trainer_that_is_lost_is_told(start_owner: StartOwner) -> None:
    owner = await start_owner("ps0", limits=Limits(lease_seconds=0.2, max_segment_bytes=0))
    ps = await tc.connect(owner.address, direct=False)
    await ps.create(COUNTER, name="counter")
    # As if its process had been killed.
    await ps.session()._link.stop()
    assert "broke" in await until_told(owner, "away")
    assert re.search(r"is lost: it has had no connection for \d+\.\d", await until_told(owner, "lost"))
    assert not of_kind(owner, "left")
    await ps.close()


async def test_a_caller_of_unary_methods_is_a_trainer_too(owner: Server) -> None:
    async with grpc.aio.insecure_channel(owner.address) as channel:
        stub = OwnerStub(channel)
        request = pb.CreateRequest(class_name=COUNTER, name="counter")
        await stub.Create(request, metadata=(("ps-trainer", "ab" * 16),))
        status = await stub.Status(pb.StatusRequest(events=10))
    (trainer,) = status.trainers
    assert (trainer.id, trainer.transport, trainer.process_id) == ("abababab", "unary", 0)
    assert [each.kind for each in status.events] == ["started", "joined", "made"]


async def test_named_objects_are_told_and_anonymous_ones_only_counted(owner: Server, ps: tc.Client) -> None:
    for _ in range(3):
        await ps.create(COUNTER, name="counter")
    await ps.create(COUNTER)
    net = await ps.module("torch.nn.Linear", 3, 2, name="net")
    await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    await ps.delete("net")
    id = ps.trainer.hex()[:8]
    made, deleted = of_kind(owner, "made"), of_kind(owner, "deleted")
    assert [each.split(" was made by ")[0] for each in made] == [
        f"{COUNTER} 'counter'",
        "torch.nn.Linear 'net'",
        "torch.optim.sgd.SGD 'net.optimizer'",
    ]
    assert all(f" by trainer {id} (" in each for each in (*made, *deleted))
    (gone,) = deleted
    assert gone.startswith("torch.nn.Linear 'net' was deleted by ") and gone.endswith("and with it 'net.optimizer'")


async def test_what_hosted_code_raises_is_told_once_without_values(
    owner: Server, ps: tc.Client, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "the-secret-of-the-caller"
    counter = await ps.create(COUNTER, name="counter")
    for _ in range(10):
        with pytest.raises(tc.errors.RemoteError):
            await counter.fail(secret)
    first, tenth = (each for each in owner.engine.events.latest() if each.kind == "raised")
    assert (first.subject, first.count, tenth.count) == (f"{COUNTER}.fail", 1, 10)
    assert f"{COUNTER}.fail raised builtins." in first.text and ps.trainer.hex()[:8] in first.text
    assert "in fail" in first.traceback and "hosted_models.py" in first.traceback and not tenth.traceback
    records = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(records) == 2 and all(each.exc_info is None for each in records)


async def test_a_constructor_that_raises_is_told(owner: Server, ps: tc.Client) -> None:
    with pytest.raises(tc.errors.RemoteError):
        await ps.module("torch.nn.Linear", "three", 2, name="net")
    (text,) = of_kind(owner, "raised")
    assert text.startswith("the constructor of torch.nn.Linear raised builtins.TypeError: ")


async def test_a_mistake_of_the_caller_is_not_told(owner: Server, ps: tc.Client) -> None:
    with pytest.raises(tc.errors.UnknownNameError):
        await ps.attach("nobody")
    assert not of_kind(owner, "raised")


async def test_a_slow_call_is_told_and_a_wait_is_not(start_owner: StartOwner) -> None:
    owner = await start_owner("ps0", limits=Limits(slow_call_seconds=0.02))
    async with tc.connect(owner.address) as ps:
        gate = await ps.create(GATE, name="gate")
        pending = gate.wait()
        await gate.wait_for(1)
        await asyncio.sleep(0.03)
        await gate.open()
        await pending
        # On a busy machine others take as long.
        text = await until_told(owner, "slow", f"{GATE}.wait took ")
    assert re.search(r" took \d+\.\d", text) and f"for trainer {ps.trainer.hex()[:8]} (" in text
    assert not any("a status" in each for each in of_kind(owner, "slow"))


async def test_steps_of_trainers_and_optimizers_are_counted(owner: Server, ps: tc.Client, ps2: tc.Client) -> None:
    net = await ps.module(f"{MODELS}.Affine", 3, 2, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.25)
    other = await ps2.attach("net")
    for client, module, times in ((ps, net, 3), (ps2, other, 2)):
        mine = opt if client is ps else await client.optimizer(torch.optim.SGD, module.parameters(), lr=0.25)
        for _ in range(times):
            async with client.context() as ctx:
                await ctx.backward((await module(torch.ones(1, 3))).sum())
                await mine.step(ctx)
    status = await ps.status()
    assert {each.id: each.steps for each in status.trainers} == {ps.trainer.hex()[:8]: 3, ps2.trainer.hex()[:8]: 2}
    (optimizer,) = status.optimizers
    assert (optimizer.version, optimizer.lr, optimizer.staleness_p50) == (5, (0.25,), 0)


async def test_open_passes_have_their_age(ps: tc.Client) -> None:
    net = await ps.module(f"{MODELS}.Affine", 3, 2, name="net")
    async with ps.context() as ctx:
        await net(torch.ones(1, 3))
        (one,) = (await ps.status()).passes
        assert one.id == str(ctx.id) and one.sessions == (ps.trainer.hex()[:8],) and 0 < one.age_seconds < 60
    await until(ps, lambda status: not status.passes)


async def test_memory_has_its_budgets(ps: tc.Client) -> None:
    await ps.module("torch.nn.BatchNorm1d", 4, name="norm")
    status = await ps.status()
    memory = {each.kind: each for each in status.memory}
    assert memory["parameters"].bytes == status.bytes == 4 * 4 * 4 + 8
    assert 0 < memory["process"].bytes < memory["process"].budget_bytes
    assert memory["contexts"].largest_bytes == 0 and memory["contexts"].budget_bytes > 0
    assert memory["requests"].budget_bytes == Limits().max_owner_bytes


async def test_communicators_show_who_is_missing(ps: tc.Client, ps2: tc.Client) -> None:
    joining = asyncio.ensure_future(ps.communicator("both", 2, rank=0))
    status = await until(ps2, lambda status: bool(status.communicators))
    assert [(each.name, each.size, each.members) for each in status.communicators] == [("both", 2, 1)]
    second, first = await asyncio.gather(ps2.communicator("both", 2, rank=1), joining)
    gathering = asyncio.ensure_future(first.all_gather(1))
    status = await until(ps2, lambda status: status.communicators[0].open == 1)
    (one,) = status.communicators
    assert (one.members, len(one.waiting_for)) == (2, 1) and one.waiting_for[0].startswith("rank 1 (trainer ")
    assert await second.all_gather(2) == await gathering == [1, 2]


async def test_events_are_asked_for_by_number(ps: tc.Client) -> None:
    before = (await ps.status()).last_event
    await ps.create(COUNTER, name="one")
    await ps.create(COUNTER, name="two")
    status = await ps.status(events=1000, events_after=before)
    assert [each.subject for each in status.events] == ["one", "two"]
    assert status.last_event == before + 2 and isinstance(status.events[0], EventStatus)
    assert (await ps.status()).events == ()


async def test_lists_have_bounds_and_numbers_count_all(ps: tc.Client) -> None:
    for number in range(4):
        await ps.create(COUNTER, name=f"c{number}")
    anonymous = await ps.create(COUNTER)
    status = await ps.status(most=2)
    assert [each.name for each in status.objects] == ["c0", "c1"]
    assert (status.objects_hosted, status.kinds["other"]) == (5, 5)
    del anonymous


async def test_a_program_cannot_write_to_the_terminal_of_an_operator(
    owner: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer_client.session.session.program_name", lambda: "\x1b[2Jevil\n" + "x" * 10_000)
    async with tc.connect(owner.address) as ps:
        (me,) = (await ps.status()).trainers
    assert me.program.startswith("?[2Jevil?x") and len(me.program) == 128


async def test_a_trainer_in_the_process_of_the_owner_is_told_as_such() -> None:
    async with in_memory() as owner, tc.connect(owner.connector()) as ps:
        (joined,) = (each.text for each in owner.engine.events.latest() if each.kind == "joined")
        assert ps.trainer.hex()[:8] in joined and joined.endswith(" has connected inside this process")
        (me,) = (await ps.status()).trainers
        assert me.transport == "in_process"
