"""Checkpoints of an owner that goes on running: after a crash the named objects are as they were in the last one."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_service.cli import probe
from ps_service.durability import writing
from ps_service.durability.store import CheckpointError
from ps_service.engine import Engine
from ps_service.server import Server
from ps_wire.v1.operations_pb2 import CheckpointReply, CheckpointRequest
from tests.conftest import StartProcess
from tests.forking.process import Forking
from tests.integration.restarting import Owner, step
from tests.integration.support import COUNTER, GATE, bits

LINEAR = "torch.nn.Linear"
X = torch.ones(1, 4)


async def write(owner: Owner) -> CheckpointReply:
    return await asyncio.to_thread(probe.ask, owner.address, CheckpointRequest(), 60.0)


def files_of(reply: CheckpointReply) -> list[Path]:
    return [*Path(reply.folder).glob("[st]*.*")]


def newest(folder: Path) -> int:
    return max((int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*")), default=0)


async def test_after_a_crash_named_objects_are_as_they_were_written(owner: Owner, ps: tc.Client) -> None:
    async def attach() -> tuple[tc.RemoteModule, tc.DistributedOptimizer, tc.DistributedScheduler, tc.Table]:
        net = await ps.module(LINEAR, 4, 2, name="net")
        opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
        return (
            net,
            opt,
            await ps.scheduler(lr_scheduler.StepLR, opt, 1),
            await ps.table("items", 2, tc.tables.Adagrad(lr=0.1)),
        )

    async def train() -> None:
        await step(ps, opt, net, X)
        async with ps.context() as ctx:
            await ctx.backward((await items(torch.tensor([3, 10**12]))).square().sum(), step=items.optimizer)

    async def state() -> str:
        # Outside of a pass, so no row is made.
        rows = await items(torch.tensor([3, 10**12, 4]))
        return bits([await net.state_dict(), await opt.state_dict(), await schedule.state_dict(), rows])

    net, opt, schedule, items = await attach()
    await train()
    await schedule.step()
    await net.parameter("bias").requires_grad_(False)
    written = await state()
    reply = await write(owner)
    assert (reply.owner, reply.objects, list(reply.left_out)) == ("ps0", 5, [])
    assert Path(reply.folder) == owner.folder / "checkpoint-000001"
    assert 0 < reply.held_seconds <= reply.seconds
    assert reply.bytes == sum(path.stat().st_size for path in files_of(reply))
    await train()
    assert await state() != written
    await owner.crash()
    with pytest.raises((tc.errors.SessionLostError, tc.errors.StaleHandleError), match="as at the beginning"):
        await train()
    net, opt, schedule, items = await attach()
    assert not net.was_made
    assert await state() == written
    assert not net.parameter("bias").requires_grad
    assert (await step(ps, opt, net, X))[1] == {"ps0": 2}


async def test_it_is_consistent_while_trainers_step(owner: Owner, ps: tc.Client) -> None:
    """Each step adds one to the bias of both modules: whatever is written, both have the version of the optimizer."""
    nets = [await ps.module(LINEAR, 4, 1, name=name) for name in ("one", "other")]
    parameters = [net.parameter("bias") for net in nets]
    for net in nets:
        await net.load_state_dict({"weight": torch.zeros(1, 4), "bias": torch.zeros(1)})
    opt = await ps.optimizer(optim.SGD, parameters, lr=1.0, name="sgd", maximize=True)
    stop = asyncio.Event()

    async def train() -> None:
        while not stop.is_set():
            async with ps.context() as ctx:
                await ctx.backward((await nets[0](X) + await nets[1](X)).sum(), step=opt)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(train())
        for _ in range(3):
            await write(owner)
        stop.set()
    await owner.crash()
    await _lost(ps)
    objects = json.loads((owner.folder / "checkpoint-000003" / "manifest.json").read_text())["objects"]
    (version,) = (each["version"] for each in objects if "version" in each)
    assert version
    for name in ("one", "other"):
        assert (await (await ps.attach(name)).state_dict())["bias"].tolist() == [version]  # type: ignore[attr-defined]


async def _lost(ps: tc.Client) -> None:
    """Waits until the client knows that the owner has lost its session."""
    while not ps.session("ps0").restarts:
        with suppress(tc.errors.SessionLostError):
            await ps.status()


async def test_trainers_notice_nothing_when_the_owner_stops_in_order_afterwards(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(LINEAR, 4, 2)
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    await write(owner)
    await owner.restart()
    assert (await step(ps, opt, net, X))[1] == {"ps0": 1}


async def test_what_cannot_be_kept_is_named(owner: Owner, ps: tc.Client) -> None:
    await ps.create(COUNTER, 3, name="counter")
    assert [line for line in (await write(owner)).left_out if "'counter': its class has no state_dict" in line]


async def test_if_a_module_is_busy_there_is_an_error_and_training_goes_on(
    owner: Owner, ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_PATIENCE_SECONDS", 0.2)
    net = await ps.module(LINEAR, 4, 2, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    (hosted,) = (each for each in owner.server.engine.registry.objects() if each.name == "net.optimizer")
    await write(owner)
    with (
        hosted.value.lock,
        pytest.raises(tc.errors.InternalError, match=r"takes longer than 0\.2 s; checkpoint-000001 is still"),
    ):
        await write(owner)
    assert (await step(ps, opt, net, X))[1] == {"ps0": 1}
    assert [path.name for path in owner.folder.glob("checkpoint-*")] == ["checkpoint-000001"]


async def test_calls_go_on_while_steps_wait(owner: Owner, ps: tc.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = await ps.create(GATE, name="gate")
    waiting = gate.wait()
    await gate.wait_for(1)
    assert (await write(owner)).objects == 0, "a call that hangs elsewhere delays nothing"
    await gate.open()
    await waiting


async def test_each_is_an_event_and_so_is_one_that_could_not_be_written(
    owner: Owner, ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ps.module(LINEAR, 4, 2, name="net")
    folder = (await write(owner)).folder

    def refuse(*_: object) -> None:
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(writing, "write_live", refuse)
    for _ in range(2):
        with pytest.raises(tc.errors.InternalError, match="the disk is full"):
            await write(owner)
    written, failed = [each for each in (await ps.status(events=100)).events if each.kind == "checkpoint"]
    assert written.text.startswith(f"the state of ps0 is kept in {folder}: 1 objects, ") and written.level == "info"
    assert "could not be written: the disk is full" in failed.text and failed.level == "error"


async def test_without_a_data_directory_it_says_what_to_do(ps: tc.Client, owner: Owner) -> None:
    async with Server(Engine("ps7")) as other:
        with pytest.raises(tc.errors.InvalidArgumentError, match="ps-service serve --data-dir"):
            await asyncio.to_thread(probe.ask, other.address, CheckpointRequest(), 60.0)
    with pytest.raises(ValueError, match="checkpoint_every needs data_dir"):
        Server(Engine("ps7"), checkpoint_every=5.0)


async def test_an_owner_writes_them_by_itself_and_when_it_is_asked(
    start_process: StartProcess, forking: Forking, tmp_path: Path
) -> None:
    flags = ("--name", "ps0", "--data-dir", str(tmp_path), "--checkpoint-every", "0.05", "--durability", "off")
    owner = await start_process(*flags)
    async with tc.connect(owner.address) as ps:
        await ps.module(LINEAR, 4, 2, name="net")
        asked = await forking.begin("ps_service", "checkpoint", owner.address, errors=True)
        told = (await asked.communicate())[0].decode()
        await asked.aclose()
        assert told.startswith(f"{tmp_path}/checkpoint-")
        assert " of ps0: 1 objects, " in told
        number = int(told.split()[0].rpartition("-")[2])
        async with asyncio.timeout(50):
            while newest(tmp_path) < number + 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        owner.process.kill()
        await owner.process.wait()
        await start_process(*flags, "--listen", owner.address)
        await _lost(ps)
        assert not (await ps.module(LINEAR, 4, 2, name="net")).was_made
