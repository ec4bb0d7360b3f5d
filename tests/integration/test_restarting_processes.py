"""Tests owners as processes: SIGTERM writes a checkpoint, the next start continues, and trainers only see a pause."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import torch

import trainer_client as tc
from tests.forking.process import Forking
from tests.integration.restarting import Told
from tests.owner_processes import OwnerProcess, StartOwner, forked_owners

HOSTS = "tests.hosted_models"


@pytest.fixture
async def start(forking: Forking) -> AsyncIterator[StartOwner]:
    async with forked_owners(forking) as start:
        yield start


async def end(owner: OwnerProcess) -> list[str]:
    """Asks an owner to drain; what it logged meanwhile."""
    owner.process.send_signal(signal.SIGTERM)
    _, lines = await owner.ended()
    assert owner.process.returncode == 0, lines
    return [json.loads(line)["event"] for line in lines if line.startswith("{")]


async def test_a_group_goes_on_while_its_owners_and_its_directory_restart(start: StartOwner, tmp_path: Path) -> None:
    def flags(name: str, directory: str) -> list[str]:
        return ["--name", name, "--directory", directory, "--data-dir", str(tmp_path / name), "--import", HOSTS]

    keeper = await start(*flags("directory", "self"))
    ps0, ps1 = await asyncio.gather(*(start(*flags(name, keeper.address)) for name in ("ps0", "ps1")))
    told: Told[dict[str, int]] = Told()

    async def train(steps: int) -> None:
        async with tc.connect("ps0", "ps1", directory=keeper.address) as ps:
            parts = [await ps.module(f"{HOSTS}.Affine", 3, 3, name=each, owner=each) for each in ("ps0", "ps1")]
            opt = await ps.optimizer(torch.optim.Adam, [p for part in parts for p in part.parameters()], lr=0.01)
            for _ in range(steps):
                async with ps.context() as ctx:
                    loss = (await parts[1](await parts[0](torch.ones(2, 3)))).square().mean()
                    await ctx.backward(loss)
                    told.add(await opt.step(ctx))

    async with asyncio.timeout(90):
        training = asyncio.create_task(train(120))
        await told.reached(20)
        logged = await end(ps1)
        assert any(re.search(r"the state of ps1 is kept in .*ps1/checkpoint-000001", line) for line in logged)
        ps1 = await start(*flags("ps1", keeper.address), "--listen", ps1.address)
        await told.reached(60)
        await end(keeper)
        keeper = await start(*flags("directory", "self"), "--listen", keeper.address)
        # Who comes now finds owners that had entered the directory before.
        await train(5)
        await training
        await end(ps1)
        await end(ps0)
        await end(keeper)
    for name in ("ps0", "ps1"):
        assert sorted(versions[name] for versions in told.items) == list(range(1, 126))


async def test_a_checkpoint_is_written_though_hosted_code_never_returns(start: StartOwner, tmp_path: Path) -> None:
    flags = ["--import", HOSTS, "--data-dir", str(tmp_path / "data"), "--drain-seconds", "0.2"]
    owner = await start(*flags)
    async with tc.connect(owner.address, reconnect_timeout=30) as ps:
        gate = await ps.create(f"{HOSTS}.Gate")
        net = await ps.module("torch.nn.Linear", 2, 2, name="net")
        waiting = gate.wait()
        await gate.wait_for(1)
        logged = await end(owner)
        with pytest.raises(tc.errors.SessionLostError, match="stopped while this request ran"):
            await waiting
        assert any("Gate '' is not kept: its class has no state_dict" in line for line in logged)
        assert any("hosted code is still running" in line for line in logged)
        before = {name: value.clone() for name, value in (await _again(start, owner, flags, net)).items()}
        assert before.keys() == {"weight", "bias"}


async def _again(
    start: StartOwner, owner: OwnerProcess, flags: list[str], net: tc.RemoteModule
) -> dict[str, torch.Tensor]:
    await start(*flags, "--listen", owner.address)
    return await net.state_dict()


async def test_a_checkpoint_that_cannot_be_written_is_an_error(start: StartOwner, tmp_path: Path) -> None:
    owner = await start("--data-dir", str(tmp_path / "data"), cwd=tmp_path)
    # No file may have a byte, as on a disk that is full.
    psutil.Process(owner.process.pid).rlimit(psutil.RLIMIT_FSIZE, (0, 0))
    owner.process.send_signal(signal.SIGTERM)
    _, lines = await owner.ended()
    assert owner.process.returncode == 2
    assert re.fullmatch(
        r"ps-service: the checkpoint .*checkpoint-000001 could not be written: File too large; "
        "there is no earlier one",
        lines[-1],
    )


async def test_a_directory_that_cannot_be_started_from_is_told_in_one_line(start: StartOwner, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    first = await start("--data-dir", data)
    second = await start("--data-dir", data)
    _, lines = await second.ended()
    assert second.process.returncode == 2
    assert lines[-1] == f"ps-service: another owner uses the data directory {data}; give each its own"
    await end(first)
    other = await start("--data-dir", data, "--name", "ps1")
    _, lines = await other.ended()
    assert other.process.returncode == 2
    assert re.search(
        r"is the state of owner 'ps0', but this owner is 'ps1'; give each a directory of its own", lines[-1]
    )
