"""Tests that no child process is left, whatever happens to the launcher."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from examples.digits.process import Child, Children

OBEDIENT = "import signal; print('ready', flush=True); signal.pause()"
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("not yet", flush=True))
print("ready", flush=True)
while True:
    signal.pause()
"""


async def start(children: Children, code: str) -> Child:
    """Starts a child and waits until it has said that it is ready."""
    child = await children.start("child", [sys.executable, "-c", code], os.environ)
    assert await anext(child.lines()) == "ready"
    return child


def is_gone(child: Child) -> bool:
    """Whether the child has ended and has been reaped."""
    try:
        os.kill(child.pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_leaving_the_block_ends_the_children(tmp_path: Path) -> None:
    async with Children(tmp_path) as children:
        started = [await start(children, OBEDIENT) for _ in range(2)]
    assert all(map(is_gone, started))
    assert [await child.wait() for child in started] == [-15, -15]


async def test_an_error_ends_the_children(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        async with Children(tmp_path) as children:
            child = await start(children, OBEDIENT)
            raise KeyError
    assert is_gone(child)


async def test_a_child_that_does_not_listen_is_killed_after_the_grace(tmp_path: Path) -> None:
    async with Children(tmp_path, grace_seconds=0.05) as children:
        child = await start(children, STUBBORN)
    assert await child.wait() == -9


async def test_cancelling_twice_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    ready = asyncio.Event()
    started: list[Child] = []

    async def work() -> None:
        async with Children(tmp_path, grace_seconds=3600) as children:
            started.append(await start(children, STUBBORN))
            ready.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await ready.wait()
    task.cancel()
    assert await anext(started[0].lines()) == "not yet"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_gone(started[0])


async def test_a_child_cancelled_while_it_starts_is_not_left(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    begun = asyncio.Event()

    async def work() -> None:
        async with Children(tmp_path) as children:
            code = f"import os, pathlib; pathlib.Path({str(mark)!r}).write_text(str(os.getpid())); {OBEDIENT}"
            begun.set()
            await start(children, code)

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # Whether the child came as far as leaving its mark is up to the system; that it is gone is not.
    if mark.exists() and (text := mark.read_text()):
        with pytest.raises(ProcessLookupError):
            os.kill(int(text), 0)


async def test_a_failure_names_the_log_and_shows_its_end(tmp_path: Path) -> None:
    async with Children(tmp_path) as children:
        child = await children.start("child", [sys.executable, "-c", "raise SystemExit('no such device')"], os.environ)
        assert await child.wait() == 1
        failure = str(child.failed("ended"))
    assert failure.startswith("child ended")
    assert str(tmp_path / "child.log") in failure
    assert failure.endswith("no such device")
