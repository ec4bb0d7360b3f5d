"""Owners that a supervisor starts: what it does when they end, and what they do when it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import trainer_client as tc
from ps_service.ray import supervision
from ps_service.ray.owner_process import OwnerProcess
from ps_service.ray.owner_spec import OwnerSpec
from ps_service.ray.supervision import Supervision
from tests.conftest import ROOT
from tests.waiting import until

SERVES = 'echo "ps0 is serving on 127.0.0.1:77"; while read -r _; do :; done'
"""What stands for an owner: a program that serves until its standard input ends."""

FAILS = "exit 3"
TAKEN = 'echo "ps0 is serving on 127.0.0.1:77"; exit 2'


class Node:
    """A node, of which a test says what happens to it."""

    node, host = "node", "127.0.0.1"

    def __init__(self) -> None:
        self.draining = False
        self.left = threading.Event()

    def is_draining(self) -> bool:
        return self.draining

    def leave(self) -> None:
        self.left.set()


class Supervised:
    """A supervision in a thread, of programs that stand for owners: one after the other, the last again and again."""

    def __init__(self, *programs: str) -> None:
        self.node = Node()
        self.commands: list[list[str]] = []
        self._programs = programs
        self.supervision = Supervision(OwnerSpec("ps", "ps0", ("ps0", "ps1")), self.node, self._start)
        self._thread = threading.Thread(target=self.supervision.run)
        self._thread.start()

    def _start(self, command: list[str]) -> OwnerProcess:
        program = self._programs[min(len(self.commands), len(self._programs) - 1)]
        self.commands.append(command)
        return OwnerProcess(["/bin/sh", "-c", program])

    def value(self, flag: str) -> list[str]:
        """What a flag was for each start."""
        return [command[command.index(flag) + 1] if flag in command else "" for command in self.commands]

    async def serves(self, starts: int = 1) -> None:
        await until(lambda: len(self.commands) == starts and self.supervision.address, 0.01)

    async def ended(self) -> None:
        await until(lambda: not self._thread.is_alive(), 0.01)

    async def close(self) -> None:
        self.supervision.stop(0.0)
        await self.ended()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(supervision, "_FIRST_PAUSE", 0.01)


async def test_one_that_was_killed_is_started_again_at_its_port() -> None:
    supervised = Supervised(SERVES)
    for starts in (1, 2, 3):
        await supervised.serves(starts)
        state = supervised.supervision.describe()
        assert (state.state, state.address, state.restarts) == ("serving", "127.0.0.1:77", starts - 1)
        if starts < 3:
            os.kill(state.pid, signal.SIGKILL)
    assert "exit code -9" in state.error
    assert supervised.value("--listen") == ["127.0.0.1:0", "127.0.0.1:77", "127.0.0.1:77"]
    assert not supervised.node.left.is_set()
    await supervised.close()


async def test_an_owner_is_told_all_names_and_where_the_others_are(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    heard.touch()
    supervised = Supervised(f'echo "ps0 is serving on 127.0.0.1:77"; while read -r l; do echo "[$l]" >> {heard}; done')
    await supervised.serves()
    for address in ("127.0.0.1:1", "", "127.0.0.1:1", "127.0.0.1:2"):
        supervised.supervision.hear("ps1", address)
    first = ["[ps0]", "[ps1]", "[]", "[ps1=127.0.0.1:1]", "[ps1=127.0.0.1:2]"]
    await until(lambda: heard.read_text().split() == first, 0.01)
    os.kill(supervised.supervision.describe().pid, signal.SIGKILL)
    await supervised.serves(2)
    await until(lambda: heard.read_text().split() == [*first, "[ps0]", "[ps1=127.0.0.1:2]", "[]"], 0.01)
    await supervised.close()
    supervised.supervision.hear("ps1", "127.0.0.1:3")  # nobody is there to be told


async def test_one_whose_node_is_drained_ends_and_goes_elsewhere() -> None:
    supervised = Supervised(SERVES)
    await supervised.serves()
    supervised.node.draining = True
    await supervised.ended()
    assert supervised.node.left.is_set() and len(supervised.commands) == 1
    assert supervised.supervision.describe().pid == 0


async def test_one_that_has_lost_its_data_directory_is_not_started_against_the_other() -> None:
    supervised = Supervised(TAKEN)
    await supervised.ended()
    assert supervised.node.left.is_set() and len(supervised.commands) == 1


async def test_a_node_on_which_it_cannot_start_is_left() -> None:
    supervised = Supervised(FAILS)
    await supervised.ended()
    assert supervised.node.left.is_set() and len(supervised.commands) == 3
    assert supervised.supervision.describe().error == "it has ended with exit code 3 before it served"


async def test_a_start_that_fails_is_tried_again_at_another_port() -> None:
    supervised = Supervised('echo "ps0 is serving on 127.0.0.1:77"; exit 1', FAILS, FAILS, SERVES)
    await supervised.serves(4)
    assert supervised.value("--listen") == ["127.0.0.1:0", "127.0.0.1:77", "127.0.0.1:0", "127.0.0.1:0"]
    await supervised.close()


async def test_a_node_that_starts_no_process_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> OwnerProcess:
        raise OSError("too many processes")

    monkeypatch.setattr(Supervised, "_start", refuse)
    supervised = Supervised(SERVES)
    await supervised.ended()
    assert supervised.node.left.is_set()


async def test_stopped_for_good_it_is_not_started_again() -> None:
    supervised = Supervised(SERVES)
    await supervised.serves()
    assert await asyncio.to_thread(supervised.supervision.stop, 30.0)
    await supervised.ended()
    state = supervised.supervision.describe()
    assert (state.state, state.address, len(supervised.commands)) == ("stopped", "", 1)
    assert not supervised.node.left.is_set()


async def test_one_that_does_not_end_is_told() -> None:
    supervised = Supervised('echo "ps0 is serving on 127.0.0.1:77"; exec tail -f /dev/null')
    await supervised.serves()
    assert not supervised.supervision.stop(0.01)
    assert supervised.supervision.describe().state == "draining"
    os.kill(supervised.supervision.describe().pid, signal.SIGKILL)
    await supervised.ended()


def test_an_owner_at_a_low_priority_is_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpriority", lambda *_: 15)
    Supervision(OwnerSpec("ps", "ps0", ("ps0",)), Node())
    assert "ps0 runs at nice 15" in caplog.text and "RAY_worker_niceness=0" in caplog.text


# Owners themselves

STARTER = """
import signal, sys
from ps_service.ray.owner_process import OwnerProcess
from ps_service.ray.owner_spec import OwnerSpec
spec = OwnerSpec("ps", "ps0", ("ps0",), data_dir=sys.argv[1], flags=("--no-compile-tables",))
owner = OwnerProcess(spec.command("127.0.0.1:0"))
owner.tell("ps0")
owner.tell("")
while not owner.address:
    owner.ended.wait(0.01)
print(owner.address, owner.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has started an owner."""
    command = [sys.executable, "-c", STARTER, str(tmp_path / "ps0")]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        yield process
        process.kill()


async def test_an_owner_outlives_its_supervisor_and_keeps_what_it_has(
    starter: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert starter.stdout is not None
    address, pid = (await asyncio.to_thread(starter.stdout.readline)).split()
    owner = psutil.Process(int(pid))
    async with tc.connect(address) as ps:
        await ps.module("torch.nn.Linear", 2, 2, name="net")
    # What Ray does to a worker that ends, and to its direct children.
    for each in (*psutil.Process(starter.pid).children(), psutil.Process(starter.pid)):
        each.kill()
    starter.wait()
    await until(lambda: not owner.is_running() or owner.status() == psutil.STATUS_ZOMBIE, 0.05)
    assert list((tmp_path / "ps0").glob("checkpoint-*"))
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))):
        pass
    with suppress(psutil.Error):
        owner.kill()
