"""Tests of what asks an owner to stop, and of what does not cut its drain short."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

import trainer_client as tc
from ps_service.cli.stop_requests import StopRequests
from tests.forking.process import ROOT, Forking, environment
from tests.owner_processes import OwnerProcess, StartOwner, forked_owners
from tests.waiting import SECONDS

FLAGS = ("--import", "tests.hosted_models", "--log-format", "text")


@pytest.fixture
async def start(forking: Forking) -> AsyncIterator[StartOwner]:
    async with forked_owners(forking) as start:
        yield start


async def line_with(owner: OwnerProcess, word: str) -> str:
    while word not in (line := (await owner.process.stderr.readline()).decode()):
        assert line, f"the owner has ended and not said {word!r}"
    return line


async def test_a_second_signal_leaves_a_drain_its_time(start: StartOwner, tmp_path: Path) -> None:
    owner = await start(*FLAGS, "--data-dir", str(tmp_path / "ps0"))
    async with tc.connect(owner.address, reconnect_timeout=0.1) as ps:
        net = await ps.module("torch.nn.Linear", 2, 1, name="net")
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        async with ps.context() as ctx:
            loss = (await net(torch.ones(1, 2))).sum()
            owner.process.send_signal(signal.SIGTERM)
            first = await line_with(owner, "SIGTERM")
            assert "SIGQUIT" in first
            assert "third" in first
            owner.process.send_signal(signal.SIGTERM)
            await line_with(owner, "drains already")
            assert await ctx.backward(loss, step=opt) == {"ps0": 1}
        await owner.ended()
    assert owner.process.returncode == 0
    assert (tmp_path / "ps0" / "checkpoint-000001").is_dir()


@pytest.mark.parametrize("numbers", [[signal.SIGTERM] * 3, [signal.SIGTERM, signal.SIGQUIT]])
async def test_whoever_insists_does_not_wait(start: StartOwner, numbers: list[signal.Signals]) -> None:
    owner = await start(*FLAGS)
    async with tc.connect(owner.address, reconnect_timeout=0.1) as ps:
        gate = await ps.create("tests.hosted_models.Gate")
        waiting = gate.wait()
        await gate.wait_for(1)
        for number, word in zip(numbers, ("drains, and ends then", "drains already", ""), strict=False):
            owner.process.send_signal(number)
            if number is signal.SIGTERM and word:
                await line_with(owner, word)
        await owner.ended()
        assert owner.process.returncode == -numbers[-1]
        with pytest.raises(tc.PsError):
            await waiting


def test_it_drains_when_standard_input_ends(forking: Forking, tmp_path: Path) -> None:
    flags = ("--listen", "127.0.0.1:0", "--until-eof", "--data-dir", str(tmp_path / "ps0"))
    with forking.start("ps_service", "serve", *flags) as owner:
        assert " is serving on " in owner.stdout.readline()
        owner.stdin.write("what is written before does not count\n")
        owner.stdin.flush()
        assert owner.poll() is None
        owner.stdin.close()
        assert owner.wait(SECONDS) == 0
    assert (tmp_path / "ps0" / "checkpoint-000001").is_dir()


@pytest.mark.usefixtures("forked_programs")
def test_its_state_is_kept_when_all_pipes_of_its_starter_are_gone(tmp_path: Path) -> None:
    flags = ("--listen", "127.0.0.1:0", "--until-eof", "--data-dir", str(tmp_path / "ps0"))
    pipe = subprocess.PIPE
    command = (sys.executable, "-m", "ps_service", "serve", *flags)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT, env=environment()) as owner:
        assert owner.stdin and owner.stdout and owner.stderr
        assert b" is serving on " in owner.stdout.readline()
        for each in (owner.stdout, owner.stderr, owner.stdin):
            each.close()
        owner.wait(SECONDS)
    assert (tmp_path / "ps0" / "checkpoint-000001").is_dir()


async def test_it_drains_when_its_input_is_empty(start: StartOwner) -> None:
    owner = await start(*FLAGS, "--until-eof")
    assert any("the end of standard input: ps0 drains" in line for line in (await owner.ended())[1])
    assert owner.process.returncode == 0


async def test_an_input_that_is_closed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", lambda *_: None)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(OSError, match="standard input is closed"):
        StopRequests("ps0").watch_input()
