"""Trainers are told what is on the disks of their owners, and can wait for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.durability.keeper import Keeper
from ps_service.durability.log.log import Log
from ps_service.durability.log_inspection import inspect_log
from ps_service.engine import Engine
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests.integration.restarting import TALLY, Owner
from tests.integration.restarts.test_killed import one_pass
from tests.integration.support import bits
from tests.integration.test_unary import ME, create

TRANSPORTS: Final[dict[str, dict[str, Any]]] = {
    "grpc": {"shared_memory": False, "direct": False},
    "direct": {"shared_memory": False},
    "shared_memory": {},
}

LONG: Final = "interval:3600"


def log_of(owner: Owner) -> Log:
    log: Any = owner.server.engine.durability.log
    return log.log  # type: ignore[no-any-return]


async def stepped(ps: tc.Client, net: tc.RemoteModule, opt: tc.DistributedOptimizer, how: str) -> tc.Stepped:
    async with ps.context() as ctx:
        loss = (await net(torch.ones(2, 4))).square().sum()
        if how == "backward":
            return await ctx.backward(loss, step=opt)
        await ctx.backward(loss)
        return await opt.step(ctx)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("how", ["step", "backward"])
async def test_steps_tell_what_is_on_the_disk_and_it_can_be_waited_for(
    tmp_path: Path, transport: str, how: str
) -> None:
    async with (
        Owner(tmp_path, durability=LONG, direct_port=0) as owner,
        tc.connect(owner.address, **TRANSPORTS[transport]) as ps,
    ):
        net = await ps.module(nn.Linear, 4, 2)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        assert [session.transport for session in owner.server.engine.sessions.all()] == [transport]
        for version in (1, 2, 3):
            made = await stepped(ps, net, opt, how)
            assert made == {"ps0": version} and made.durable == {"ps0": 0}
        position = ps.sessions["ps0"].requests.position
        assert log_of(owner).end >= position > log_of(owner).synced
        await ps.durable()
        assert log_of(owner).synced >= position
        made = await stepped(ps, net, opt, how)
        assert made == {"ps0": 4} and made.durable == {"ps0": 3}
        assert log_of(owner).lag.records


@pytest.mark.parametrize("how", ["step", "backward"])
async def test_with_always_a_step_is_on_the_disk_when_it_is_answered(tmp_path: Path, how: str) -> None:
    async with Owner(tmp_path, durability="always") as owner, tc.connect(owner.address) as ps:
        net = await ps.module(nn.Linear, 4, 2)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        for version in (1, 2, 3):
            made = await stepped(ps, net, opt, how)
            assert made == made.durable == {"ps0": version}
            assert ps.sessions["ps0"].requests.position <= log_of(owner).synced
        await ps.durable()


async def test_pushes_and_joint_steps_tell_it_for_each_optimizer(tmp_path: Path) -> None:
    async with Owner(tmp_path, durability=LONG) as owner, tc.connect(owner.address) as ps:
        nets = [await ps.module(nn.Linear, 4, 2) for _ in range(2)]
        opts = [await ps.optimizer(optim.SGD, net.parameters(), lr=0.1) for net in nets]
        await stepped(ps, nets[0], opts[0], "step")
        await ps.durable()
        replica = await nets[0].replica()
        for each in replica.parameters():
            each.grad = torch.ones_like(each)
        made = await replica.push(opts[0])
        assert made == {"ps0": 2} and made.durable == {"ps0": 1}
        async with ps.context() as ctx:
            both = (await nets[0](torch.ones(2, 4))).sum() + (await nets[1](torch.ones(2, 4))).sum()
            made_both = await ctx.backward(both, step=opts)
        assert made_both == [{"ps0": 3}, {"ps0": 1}]
        assert [each.durable for each in made_both] == [{"ps0": 1}, {"ps0": 0}]


@pytest.mark.parametrize("policy", [None, tc.policies.Async(), tc.policies.Sync(trainers=1)], ids=repr)
@pytest.mark.parametrize("durability", ["always", LONG])
async def test_steps_over_owners_tell_it_for_each_owner(tmp_path: Path, policy: Any, durability: str) -> None:
    async with (
        Owner(tmp_path / "ps0", durability=durability) as owner,
        Owner(tmp_path / "ps1", "ps1", durability=durability) as other,
        tc.connect(owner.address, other.address) as ps,
    ):
        nets = [await ps.module(nn.Linear, 4, 4, owner=name) for name in ("ps0", "ps1")]
        parameters = [each for net in nets for each in net.parameters()]
        opt = await ps.optimizer(optim.SGD, parameters, name="opt", lr=0.1, policy=policy)
        await ps.durable()
        for version in (1, 2):
            async with ps.context() as ctx:
                await ctx.backward((await nets[1](await nets[0](torch.ones(2, 4)))).sum())
                made = await opt.step(ctx)
            last = version if durability == "always" else 0
            assert made == {"ps0": version, "ps1": version} and made.durable == {"ps0": last, "ps1": last}
        await ps.durable()
    for name in ("ps0", "ps1"):
        log = inspect_log(tmp_path / name, [])
        assert log is not None
        assert [each.version for each in log.objects if each.name == "opt"] == [2], "`ps-service inspect` shows it"


async def test_an_owner_without_a_log_adds_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    async with (
        Owner(tmp_path / "ps0", durability="off") as owner,
        Owner(tmp_path / "ps1", "ps1", durability=LONG) as other,
        tc.connect(owner.address, other.address) as ps,
    ):
        net = await ps.module(nn.Linear, 4, 2)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        for how in ("step", "backward"):
            assert (await stepped(ps, net, opt, how)).durable == {}
        assert ps.sessions["ps0"].requests.position == 0
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"'ps0' has no log, .* start it with --data-dir and"):
            await ps.durable()
        kept = await ps.module(nn.Linear, 4, 2, owner="ps1")
        end = log_of(other).end
        assert log_of(other).synced < end
        await ps.durable([kept.ref.owner])
        assert log_of(other).synced >= end
        with pytest.raises(tc.errors.UnknownNameError):
            await ps.durable(["ps2"])


async def test_the_blocking_client_waits(tmp_path: Path) -> None:
    async with Owner(tmp_path, durability=LONG) as owner:

        def train() -> None:
            with tc.connect(owner.address) as ps:
                ps.module(nn.Linear, 4, 2, name="net")
                end = log_of(owner).end
                assert log_of(owner).synced < end
                ps.durable(timeout=30.0)
                assert log_of(owner).synced >= end

        await asyncio.to_thread(train)


async def test_what_was_read_is_waited_for_too(tmp_path: Path) -> None:
    async with (
        Owner(tmp_path, durability=LONG) as owner,
        tc.connect(owner.address) as ps,
        tc.connect(owner.address) as reader,
    ):
        net = await reader.module(nn.Linear, 4, 2, name="net")
        await reader.durable()
        await net.state_dict()
        await (await ps.module(nn.Linear, 4, 2, name="net")).load_state_dict(nn.Linear(4, 2).state_dict())
        await net.state_dict()
        end = log_of(owner).end
        assert log_of(owner).synced < end
        await reader.durable()
        assert log_of(owner).synced >= end


async def test_a_sync_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    async with Owner(tmp_path, durability=LONG) as owner, tc.connect(owner.address) as ps:
        net = await ps.module(nn.Linear, 4, 2)
        monkeypatch.setattr("ps_service.durability.log.disk.Disk.sync", broken)
        for _ in range(2):
            with pytest.raises(tc.errors.StorageError, match=r"cannot be written: Input/output error; what is on the"):
                await ps.durable()
        with pytest.raises(tc.errors.StorageError):
            await ps.module(nn.Linear, 4, 2)
        assert await net.state_dict()


def lose(folder: Path, synced: int) -> None:
    """Takes from the log what was not synced, as when the machine crashes."""
    (path,) = folder.glob("log-*")
    content = bytearray(path.read_bytes())
    content[synced:] = bytes(len(content) - synced)
    path.write_bytes(content)


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_trainer_hears_that_acknowledged_changes_are_lost(tmp_path: Path, crashes: bool) -> None:
    async with Owner(tmp_path, durability=LONG) as owner, tc.connect(owner.address) as ps:
        net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        await one_pass(ps, net, opt, 0)
        await ps.durable()
        synced, kept = log_of(owner).synced, bits(await net.state_dict())
        await one_pass(ps, net, opt, 1)
        latest = bits(await net.state_dict())
        assert latest != kept
        await owner.server.stop()
        if crashes:
            lose(tmp_path, synced)
        await owner.start()
        if not crashes:
            assert bits(await net.state_dict()) == latest
            return
        with pytest.raises(tc.errors.StaleHandleError):
            for _ in range(2):  # the first may have been sent before the connection broke
                try:
                    await opt.state_dict()
                except tc.errors.SessionLostError as error:
                    assert "without the last changes that it had acknowledged" in str(error)
        net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
        assert bits(await net.state_dict()) == kept
        await ps.durable()


async def test_unary_answers_tell_positions_and_can_be_waited_for(tmp_path: Path) -> None:
    async with Owner(tmp_path, durability=LONG) as owner, grpc.aio.insecure_channel(owner.address) as channel:
        stub, log = OwnerStub(channel), log_of(owner)
        making = stub.Create(create(TALLY, name="tally"), metadata=ME)
        await making
        told = dict(await making.trailing_metadata())
        assert int(told["ps-position"]) == log.end > log.synced
        looking = stub.Status(pb.StatusRequest(), metadata=ME)
        await looking
        assert "ps-position" not in dict(await looking.trailing_metadata())
        reply = await stub.Durable(pb.DurableRequest(position=log.end), metadata=ME)
        assert reply.position == log.end == log.synced
        with pytest.raises(grpc.aio.AioRpcError, match=r"ends at position .* because its machine has crashed"):
            await stub.Durable(pb.DurableRequest(position=log.end + 1), metadata=ME)


async def test_answers_that_a_start_finds_in_the_log_have_their_positions(tmp_path: Path) -> None:
    async with Owner(tmp_path, durability=LONG) as owner, tc.connect(owner.address) as ps:
        await ps.module(nn.Linear, 4, 2, name="net")
        trainer, position = ps.trainer, ps.sessions["ps0"].requests.position
        await owner.server.stop()
        engine = Engine("ps0", data_dir=tmp_path)
        keeper = Keeper(engine, tmp_path)
        keeper.resume()
        keeper.close()
        engine.close()
        (answer,) = engine.reply_cache.answers(trainer).values()
        assert position and answer.reply.position == position
        await owner.start()
