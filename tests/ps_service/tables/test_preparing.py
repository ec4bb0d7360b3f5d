"""Tests that an owner has the loops of tables compiled at its start, and what a table does meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import MagicMock

import psutil
import pytest

import trainer_client as tc
from ps_service.tables import compiled
from ps_service.tables.compiled import CodeCache, cache_directory
from ps_service.tables.preparing import PREPARATION, Preparation, compile_soon
from tests.forking.process import Forking
from tests.owner_processes import OwnerProcess, StartOwner, forked_owners
from tests.waiting import until

COLD = "tests.ps_service.tables.cold_tables"
"""Imported by an owner, it has the first table there begin with nothing, as in a process that was not forked."""

pytestmark = pytest.mark.skipif(not compiled.available(), reason="numba is not installed")


@pytest.fixture
async def start(forking: Forking) -> AsyncIterator[StartOwner]:
    async with forked_owners(forking) as start:
        yield start


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CodeCache:
    """That of a machine on which nothing has been compiled."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return CodeCache()


async def read_until(owner: OwnerProcess, text: str) -> list[str]:
    assert owner.process.stderr is not None
    lines: list[str] = []
    async with asyncio.timeout(100):
        while text not in "".join(lines[-1:]):
            lines.append((await owner.process.stderr.readline()).decode())
            assert lines[-1], f"the owner ended without saying {text!r}: {lines}"
    return lines


async def test_an_owner_has_the_loops_compiled_once_on_a_machine(start: StartOwner, tmp_path: Path) -> None:
    PREPARATION.ensure()
    folder = tmp_path / cache_directory().relative_to(cache_directory().parent.parent)
    folder.mkdir(parents=True)
    for each in cache_directory().iterdir():  # so that the process needs less time
        if each.is_dir():
            (folder / each.name).symlink_to(each)
    owner = await start(XDG_CACHE_HOME=str(tmp_path), PS_COMPILE_TABLES="yes", PS_LOG_LEVEL="debug")
    assert "is serving" in owner.first
    lines = await read_until(owner, "compiled the loops of tables in ")
    assert any("compiling the loops of tables, once on this machine" in line for line in lines)

    another = await start(XDG_CACHE_HOME=str(tmp_path), PS_COMPILE_TABLES="yes", PS_LOG_LEVEL="debug")
    another.process.terminate()
    _, lines = await another.ended()
    assert "compil" not in "".join(lines)


async def test_the_compiler_ends_with_its_owner(start: StartOwner, cache: CodeCache, tmp_path: Path) -> None:
    owner = await start(XDG_CACHE_HOME=str(tmp_path), PS_COMPILE_TABLES="yes", PS_LOG_LEVEL="debug")
    await read_until(owner, "compiling the loops of tables")
    process = psutil.Process(owner.process.pid)
    # Until it runs its own program, the owner waits for it.
    await until(lambda: any("-P" in each.cmdline() for each in process.children()))
    (compiler,) = process.children()
    compiler.suspend()  # or it may be done before the owner ends
    owner.process.terminate()
    _, lines = await owner.ended()
    compiler.resume()
    assert owner.process.returncode == 0
    assert not [line for line in lines if "Traceback" in line or "loops of tables" in line]
    assert await asyncio.to_thread(psutil.wait_procs, [compiler], 60) == ([compiler], [])
    assert not cache.complete
    turn = cache.turn(wait=False)
    assert turn is not None, "the next process cannot compile"
    os.close(turn)


async def test_who_has_no_tables_is_not_told_of_their_loops(
    start: StartOwner, cache: CodeCache, tmp_path: Path
) -> None:
    owner = await start(XDG_CACHE_HOME=str(tmp_path), PS_COMPILE_TABLES="yes")
    await until(lambda: bool(psutil.Process(owner.process.pid).children()))
    owner.process.terminate()
    _, lines = await owner.ended()
    assert not [line for line in lines if "table" in line]


@pytest.mark.parametrize("has_tables", [False, True])
def test_an_owner_with_tables_says_that_it_compiles(
    cache: CodeCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, has_tables: bool
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("subprocess.Popen", MagicMock(side_effect=OSError("no process")))
    thread = compile_soon(has_tables)
    assert thread is not None
    thread.join()
    told = [each.message for each in caplog.records]
    assert told == has_tables * [
        "compiling the loops of tables, once on this machine: a table that is made meanwhile waits for it",
        "the loops of tables are compiled when the first table is made: no process",
    ]


async def test_a_table_waits_while_another_process_compiles(cache: CodeCache, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    turn = cache.turn(wait=False)
    assert turn is not None
    assert compile_soon() is None, "one process is enough"
    made = MagicMock()
    table = threading.Thread(target=Preparation().ensure, args=(made,))
    table.start()
    await until(lambda: "a table waits until another process has compiled" in caplog.text)
    assert not made.called
    cache.mark()
    os.close(turn)
    await asyncio.to_thread(table.join)
    assert made.called
    assert "compiling" not in caplog.text and "the table goes on" in caplog.text


def test_there_is_nothing_to_do_once_the_code_is_there(cache: CodeCache) -> None:
    assert not cache.complete
    cache.folder.mkdir(parents=True)
    cache.mark()
    assert cache.complete
    assert compile_soon() is None


def test_a_mark_of_other_sources_does_not_count(cache: CodeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.folder.mkdir(parents=True)
    cache.mark()
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert not cache.complete


def test_a_machine_that_keeps_nothing_compiles_in_each_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "file").touch()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compile_soon() is None
    assert "no code is kept" in caplog.text
    made = MagicMock()
    Preparation().ensure(made)
    assert made.called
    assert "waits until another" not in caplog.text


def test_an_owner_that_starts_does_not_import_numba_itself(cache: CodeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodeCache, "complete", True)
    monkeypatch.setattr(compiled, "available", lambda: pytest.fail("the event loop waits for numba's import"))
    assert compile_soon() is None


async def test_calls_of_others_are_answered_while_the_first_table_is_made(start: StartOwner) -> None:
    PREPARATION.ensure()
    owner = await start("--import", COLD)
    async with tc.connect(owner.address) as ps, tc.connect(owner.address) as other:
        assert await ps.call(f"{COLD}.loops_there") == []
        answers = 0
        table = asyncio.ensure_future(_made(ps))
        while not table.done():
            await other.status()
            answers += 1
        await table
        assert await ps.call(f"{COLD}.loops_there") != []
        assert answers > 10


async def test_an_owner_that_is_stopped_while_it_makes_its_first_table_ends_in_order(start: StartOwner) -> None:
    PREPARATION.ensure()
    owner = await start("--import", COLD)
    async with tc.connect(owner.address, reconnect_timeout=1.0) as ps:
        table = asyncio.ensure_future(_made(ps))
        while not (await ps.status()).requests_in_flight:
            assert not table.done()
        owner.process.terminate()
        _, lines = await owner.ended()
        await asyncio.wait([table])
    assert owner.process.returncode == 0
    assert not [line for line in lines if "Traceback" in line or "Fatal" in line or "still running" in line]


async def _made(ps: tc.Client) -> None:
    with suppress(tc.errors.UnavailableError):  # the owner is stopped meanwhile
        await ps.table("items", 8)
