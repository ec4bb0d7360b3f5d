"""The log of an owner beside its checkpoints, on disks that are full or broken, and in directories of other uses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from torch import nn, optim

import trainer_client as tc
from ps_service.cli import restore_view
from ps_service.durability.log.disk import Disk
from ps_service.durability.log.owners_log import OwnersLog
from ps_service.durability.resharding.reshard import reshard
from ps_service.durability.store import CheckpointError
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.codec.payload import PayloadWriter
from ps_wire.refs import Ref
from ps_wire.v1 import checkpoint_pb2 as pb
from ps_wire.v1 import operations_pb2 as operations
from ps_wire.v1.values_pb2 import Handle, Value
from tests.integration.restarting import TALLY, Owner
from tests.integration.restarts.test_killed import X, batch, in_both_modes, local_pass, mode, one_pass
from tests.integration.support import bits
from tests.ps_service.requests.asking import Asker
from trainer_client.session.session import Session


@pytest.fixture
async def owner(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, durability=mode(request)) as made:
        yield made


def checkpoints(folder: Path) -> int:
    return len(list(folder.glob("checkpoint-*")))


@in_both_modes
async def test_a_checkpoint_of_a_running_owner_is_continued_by_the_log(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 4, 2, seed=1)
    opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
    torch.manual_seed(1)
    local = nn.Linear(4, 2)
    local_opt = optim.Adam(local.parameters(), lr=0.1)
    for i in range(9):
        await one_pass(ps, net, opt, i)
        local_pass(local, local_opt, i)
        if i % 3 == 1:
            await asyncio.to_thread(owner.server.engine.checkpoints.write)
        if i % 3 == 2:
            await owner.crash()
    assert bits(await net.state_dict()) == bits(dict(local.state_dict()))
    assert bits(await opt.state_dict()) == bits(local_opt.state_dict())
    assert checkpoints(owner.folder) == 2


@pytest.mark.parametrize("again", ["crash", "restart"])
async def test_a_pass_that_a_kill_has_lost_stays_so_in_checkpoints(owner: Owner, ps: tc.Client, again: str) -> None:
    net = await ps.module(nn.Linear, 4, 2, seed=1)
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    async with ps.context() as ctx:
        await ctx.backward((await net(X)).sum())
        await owner.crash()
        await asyncio.to_thread(owner.server.engine.checkpoints.write)
        await (owner.crash() if again == "crash" else owner.restart())
        with pytest.raises(tc.errors.ContextLostError, match="the owner was killed while it was open"):
            await opt.step(ctx)
    await one_pass(ps, net, opt, 1)


async def test_checkpoints_are_written_while_trainers_train_and_cut_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ps_service.server._GROWTH_SECONDS", 0.01)
    server_options = {"log_bytes": 1 << 20}
    async with Owner(tmp_path, durability="interval:0.01", **server_options) as owner, tc.connect(owner.address) as ps:
        net = await ps.module(nn.Linear, 128, 128, seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.001)
        x = torch.randn(4, 128)
        async with asyncio.timeout(60):
            while checkpoints(tmp_path) < 2:
                async with ps.context() as ctx:
                    await ctx.backward((await net(x)).square().sum(), step=opt)
        written = bits(await net.state_dict())
        await owner.crash()
        assert bits(await net.state_dict()) == written


@in_both_modes
async def test_an_owner_starts_on_a_full_disk(owner: Owner, ps: tc.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
    opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
    await one_pass(ps, net, opt, 0)
    written = bits(await net.state_dict())
    for path in owner.folder.glob("free-*"):
        path.unlink()
    monkeypatch.setattr("ps_service.durability.log.disk.Disk.create", full)
    await owner.crash()
    assert bits(await net.state_dict()) == written
    await one_pass(ps, net, opt, 1)


@in_both_modes
async def test_a_full_disk_stops_changes_and_nothing_else(
    owner: Owner, ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = await ps.module(nn.Linear, 512, 512, seed=1)
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.001)
    x = torch.randn(2, 512)

    async def train() -> None:
        async with ps.context() as ctx:
            await ctx.backward((await net(x)).square().sum(), step=opt)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    done = 0
    with monkeypatch.context() as patch:
        patch.setattr("ps_service.durability.log.disk.Disk.create", full)
        with pytest.raises(tc.errors.StorageError, match=r"the log in .* cannot be written: No space left on device"):
            for _ in range(400):
                await train()
                done += 1
        assert 0 < done < 400
        before = bits(await net.state_dict())
        assert (await net(x)).shape == (2, 512)
        with pytest.raises(tc.errors.StorageError):
            await train()
        assert bits(await net.state_dict()) == before
    await train()
    async with ps.context() as ctx:
        await ctx.backward((await net(x)).sum())
        assert await opt.step(ctx) == {"ps0": done + 2}
    written = bits(await net.state_dict())
    await owner.crash()
    assert bits(await net.state_dict()) == written


async def test_a_disk_that_cannot_sync_acknowledges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    async with Owner(tmp_path, durability="always") as owner, tc.connect(owner.address) as ps:
        net = await ps.module(nn.Linear, 4, 2, seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        await one_pass(ps, net, opt, 0)
        monkeypatch.setattr("ps_service.durability.log.disk.Disk.sync", broken)
        for _ in range(2):
            with pytest.raises(tc.errors.StorageError, match="Input/output error"):
                await one_pass(ps, net, opt, 1)
        assert (await net(X)).shape == (2, 2)
        async with grpc.aio.insecure_channel(owner.address) as channel, asyncio.timeout(50):
            async for each in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
                if each.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                    break


@pytest.fixture
def going(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Syncs wait while it is not set."""
    going, own = threading.Event(), Disk.sync

    def held(disk: Disk, descriptor: int) -> None:
        going.wait()
        own(disk, descriptor)

    monkeypatch.setattr(Disk, "sync", held)
    going.set()
    yield going
    going.set()


async def test_a_forward_is_answered_when_the_disk_knows_of_its_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, going: threading.Event
) -> None:
    hello = Session.hello

    def silent(session: Session) -> Any:
        made = hello(session)
        made.ClearField("last_pass")
        return made

    monkeypatch.setattr(Session, "hello", silent)  # others tell the owner after the crash
    async with Owner(tmp_path, durability="always") as owner, tc.connect(owner.address) as ps:
        net = await ps.module(nn.Linear, 4, 2, seed=1)
        going.clear()
        outside = await net(X)
        async with ps.context():
            inside = asyncio.ensure_future(net(X))
            answered, _ = await asyncio.wait([inside], timeout=0.2)
            going.set()
            assert not answered
            assert torch.equal(await inside, outside)


async def test_a_trainer_is_welcomed_when_the_disk_knows_of_its_session(tmp_path: Path, going: threading.Event) -> None:
    async with Owner(tmp_path, durability="always") as owner:
        going.clear()
        connecting = asyncio.ensure_future(connected(owner.address))
        welcomed, _ = await asyncio.wait([connecting], timeout=0.5)
        going.set()
        assert not welcomed
        await connecting


async def connected(address: str) -> None:
    async with tc.connect(address):
        pass


async def test_the_start_of_an_owner_is_on_the_disk_before_it_serves(tmp_path: Path) -> None:
    async with Owner(tmp_path, durability="interval:3600") as owner:
        log = owner.server.engine.durability.log
        assert isinstance(log, OwnersLog) and log.log.synced == log.log.end > 0


async def test_an_owner_without_a_log_has_what_was_in_it(tmp_path: Path) -> None:
    async with Owner(tmp_path, durability="interval:1") as owner, tc.connect(owner.address) as ps:
        net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
        opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
        await one_pass(ps, net, opt, 0)
        written = bits([await net.state_dict(), await opt.state_dict()])
        await owner.crash()
        await one_pass(ps, net, opt, 1)
        expected = bits([await net.state_dict(), await opt.state_dict()])
        assert expected != written
    for durability in ("off", "off", "always"):
        async with Owner(tmp_path, durability=durability) as owner, tc.connect(owner.address) as ps:
            net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
            opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
            assert bits([await net.state_dict(), await opt.state_dict()]) == expected
            await one_pass(ps, net, opt, 2)
            expected = bits([await net.state_dict(), await opt.state_dict()])
            await owner.server.drain(1)


async def test_restore_refuses_a_checkpoint_with_a_log_behind_it(tmp_path: Path) -> None:
    async with Owner(tmp_path / "ps0", durability="always") as owner, tc.connect(owner.address) as ps:
        await ps.module(nn.Linear, 4, 2, name="net")
        await asyncio.to_thread(owner.server.engine.checkpoints.write)
        await ps.module(nn.Linear, 4, 2, name="another")
    wanted = restore_view.wanted("1", (), ())
    with pytest.raises(CheckpointError, match="has a log behind its newest checkpoint: start its owner once, and stop"):
        reshard([tmp_path / "ps0"], tmp_path / "to", wanted, dry_run=True, apart=60.0)
    async with Owner(tmp_path / "ps0", durability="always") as owner:
        await owner.server.drain(1)
    reshard([tmp_path / "ps0"], tmp_path / "to", wanted, dry_run=True, apart=60.0)


async def test_pushes_of_replicas_and_joint_steps_are_there(owner: Owner, ps: tc.Client) -> None:
    nets = [await ps.module(nn.Linear, 4, 2, seed=each) for each in (1, 2)]
    opts = [await ps.optimizer(optim.Adam, net.parameters(), lr=0.1) for net in nets]
    replica = await nets[0].replica()
    for i in range(6):
        for each in replica.parameters():
            each.grad = torch.full_like(each, 0.1 * i)
        await replica.push(opts[0])
        async with ps.context() as ctx:
            loss = (await nets[0](batch(i))).square().sum() + (await nets[1](batch(i))).square().sum()
            await ctx.backward(loss, step=opts)
        written = bits([await each.state_dict() for each in (*nets, *opts)])
        if i % 2:
            await owner.crash()
            assert bits([await each.state_dict() for each in (*nets, *opts)]) == written
    await replica.pull()
    state = await nets[0].state_dict()
    assert torch.equal(state["weight"], dict(replica.module.named_parameters())["weight"])


async def test_a_request_whose_object_went_with_a_session_does_not_keep_the_owner_from_starting(
    owner: Owner, ps: tc.Client
) -> None:
    net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    log = owner.server.engine.durability.log
    assert isinstance(log, OwnersLog)
    late = pb.LogRecord(trainer=ps.trainer)
    late.effects.add().again.request.set_options.optimizer.CopyFrom(Ref("ps0", "0" * 32).to_message())
    log.append(late, PayloadWriter())
    await one_pass(ps, net, opt, 0)
    written = bits(await net.state_dict())
    await owner.crash()
    assert bits(await net.state_dict()) == written


async def test_nobody_else_is_asked_while_others_wait_for_the_log(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 4, 2)
    kept = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    elsewhere = Value(handle=Handle(owner="ps1", object_id="0" * 32))
    engine, asked = owner.server.engine, list[Any]()
    opt = next(each for each in engine.registry.objects() if isinstance(each.value, HostedOptimizer))
    engine.membership.peers.foreign = lambda *given: asked.append(given)  # type: ignore[method-assign, assignment]
    options = Value()
    options.dict.items.add(key=Value(text="lr"), value=elsewhere)
    ask = Asker(engine)
    with pytest.raises(tc.errors.InvalidArgumentError, match="no handle to an object of another owner"):
        await ask("set_options", operations.SetOptionsRequest(optimizer=opt.ref.to_message(), options=options))
    with pytest.raises(tc.errors.InvalidArgumentError, match="no handle to an object of another owner"):
        await ask("load_state", operations.LoadStateRequest(target=net.ref.to_message(), state=options))
    assert not asked and kept  # which would be freed without its handle


async def test_a_log_that_fails_unexpectedly_leaves_no_request_without_an_answer(
    owner: Owner, ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = await ps.create(TALLY)

    def fails(*_: object) -> None:
        raise RuntimeError("the device has failed")

    with monkeypatch.context() as broken:
        broken.setattr(OwnersLog, "_note_drawn", fails)
        async with asyncio.timeout(60):
            with pytest.raises(tc.PsError, match="the device has failed"):
                await tally.add()
            with pytest.raises(tc.errors.InternalError, match=r"its log says why \(RuntimeError\)"):
                await tally.add("no number")
    assert await tally.add() > 0
