"""Tests that no program is left, whatever happens to the one that has started it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ps_service.launch.lines import Lines
from ps_service.launch.process import Process
from ps_service.launch.processes import Processes
from ps_wire.runtime.noop import noop
from tests.waiting import until

OBEDIENT = "import signal; print('ready', flush=True); signal.pause()"
STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"not yet\\n"))
print("ready", flush=True)
while True:
    signal.pause()
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-IS", "-c", {OBEDIENT!r}])
print(child.pid, flush=True)
"""


def begin(processes: Processes, code: str, environment: Mapping[str, str] = os.environ) -> tuple[Process, Lines]:
    """Starts a program."""
    lines = Lines()
    process = processes.start("child", [sys.executable, "-IS", "-c", code], environment, lines.take, lines.take)
    process.when_ended(lines.end)
    return process, lines


async def started(processes: Processes, code: str) -> tuple[Process, Lines]:
    """Starts a program, and waits until it has said that it is ready."""
    process, lines = begin(processes, code)
    assert await anext(aiter(lines)) == "ready"
    return process, lines


def is_gone(pid: int) -> bool:
    """Whether a process has ended and has been reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_leaving_the_block_ends_the_programs() -> None:
    async with Processes() as processes:
        running = [(await started(processes, OBEDIENT))[0] for _ in range(2)]
    assert all(is_gone(each.pid) for each in running)
    assert [await each.wait() for each in running] == [-15, -15]
    assert str(running[0].failed("too early")) == "child was ended by SIGTERM too early"
    assert running[0].status == 143


async def test_an_error_ends_the_programs() -> None:
    with pytest.raises(KeyError):
        async with Processes() as processes:
            child, _ = await started(processes, OBEDIENT)
            raise KeyError
    assert is_gone(child.pid)


async def test_a_program_that_does_not_listen_is_killed_after_the_grace() -> None:
    async with Processes(grace_seconds=0.05) as processes:
        child, _ = await started(processes, STUBBORN)
    assert child.code == -9


async def test_cancelling_twice_does_not_wait_for_the_grace() -> None:
    ready = asyncio.Event()
    running: list[tuple[Process, Lines]] = []

    async def work() -> None:
        async with Processes(grace_seconds=3600) as processes:
            running.append(await started(processes, STUBBORN))
            ready.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await ready.wait()
    child, lines = running[0]
    task.cancel()
    assert await anext(aiter(lines)) == "not yet"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_gone(child.pid)


async def test_what_a_program_has_started_ends_with_it() -> None:
    async with Processes() as processes:
        child, lines = begin(processes, PARENT)
        said = [line async for line in lines]
        assert await child.wait() == 0
    number = next(line for line in said if line.isdecimal())
    await until(lambda: is_gone(int(number)))


async def test_lines_of_every_kind_arrive_whole() -> None:
    taken: list[bytes] = []
    code = r"""
import os
for part in (b"a\r", b"b\r", b"\nc\n\n", b"d\xff", b"e" * 100_000 + b"\n", b"the end"):
    os.write(1, part)
"""
    async with Processes() as processes:
        child = processes.start("child", [sys.executable, "-IS", "-c", code], os.environ, taken.append)
        assert await child.wait() == 0
    assert taken == [b"a\r", b"b\r\n", b"c\n", b"\n", b"d\xff" + b"e" * 100_000 + b"\n", b"the end\n"]


async def test_a_program_that_is_not_there_is_named() -> None:
    async with Processes() as processes:
        lines = Lines()
        child = processes.start("child", ["/no/such/program"], os.environ, noop, lines.take)
        child.when_ended(lines.end)
        assert [line async for line in lines] == ["/no/such/program cannot be started: No such file or directory"]
        assert str(child.failed("")) == "child ended with status 1"
        child.send(signal.SIGTERM)  # which reaches nobody


async def test_errors_may_go_to_a_file(tmp_path: Path) -> None:
    async with Processes() as processes:
        with (tmp_path / "log").open("wb") as log:
            child = processes.start("child", [sys.executable, "-c", "raise SystemExit('no')"], os.environ, noop, log)
        assert await child.wait() == 1
    assert (tmp_path / "log").read_text() == "no\n"
