"""Tests of what an owner prints when it serves."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trainer_client as tc
from ps_service.cli.serving import _tell
from tests.forking.process import Forking
from tests.owner_processes import forked_owners
from tests.ports import ReservedPort

SERVER: Any = SimpleNamespace(address="127.0.0.1:5", http_url="http://127.0.0.1:6")


@pytest.mark.parametrize(
    ("out", "err", "level", "lines"),
    [
        (True, True, logging.INFO, 0),
        (True, True, logging.WARNING, 2),
        (False, True, logging.INFO, 2),
        (True, False, logging.INFO, 2),
    ],
)
def test_a_terminal_gets_the_address_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: bool, err: bool, level: int, lines: int
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: out)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: err)
    monkeypatch.setattr(logging.getLogger("ps_service.cli.serving"), "level", level)
    logging.getLogger("ps_service.cli.serving").manager._clear_cache()
    _tell(SERVER, "ps0")
    assert len(capsys.readouterr().out.splitlines()) == lines


async def test_an_owner_without_a_data_directory_says_that_its_state_goes_with_it(forking: Forking) -> None:
    async with forked_owners(forking) as start:
        owner = await start("--name", "ps7")
        async with tc.connect(owner.address) as ps:
            for name in ("net", "b", *(f"more{i:02}" for i in range(12))):
                await ps.module("torch.nn.Linear", 2, 1, name=name)
        owner.process.terminate()
        _, lines = await owner.ended()
        told = [line["event"] for line in map(json.loads, lines) if "data-dir" in line["event"]]
    assert told == [
        "ps7 has no --data-dir: what it holds is lost when it stops. --data-dir FOLDER keeps it",
        "ps7 has no --data-dir, so these objects are lost with it: b, more00, more01, more02, more03, more04, more05, "
        "more06, more07, more08 and 4 more",
    ]


async def test_one_that_has_one_does_not_say_so(forking: Forking, tmp_path: Path) -> None:
    async with forked_owners(forking) as start:
        owner = await start("--data-dir", str(tmp_path / "ps0"))
        async with tc.connect(owner.address) as ps:
            await ps.module("torch.nn.Linear", 2, 1, name="net")
        owner.process.terminate()
        _, lines = await owner.ended()
    assert not [line for line in lines if "lost" in line or "no --data-dir" in line]


async def test_one_that_waits_for_its_group_can_be_stopped(forking: Forking) -> None:
    port = ReservedPort()
    options = ("--listen", "127.0.0.1:0", "--directory", port.address)
    async with aclosing(await forking.begin("ps_service", "serve", *options, errors=True)) as process:
        while b"has not been reached" not in (line := await process.stderr.readline()):
            assert line, "it has ended"
        process.terminate()
        async with asyncio.timeout(50):  # it would wait for 30 s
            said = [line async for line in process.stderr]
            assert await process.wait() == 0
        assert not any(b"Traceback" in line or b"cannot join" in line for line in said), said
    port.close()


async def test_full_collections_pass_over_what_an_owner_has_imported(forking: Forking) -> None:
    options = ("--listen", "127.0.0.1:0", "--import", "tests.hosted_models")
    async with aclosing(await forking.begin("tests.ps_service.cli.unfrozen", "serve", *options)) as process:
        address = (await process.stdout.readline()).decode().split()[-1]
        async with tc.connect(address) as ps:
            frozen, others = await ps.call("tests.hosted_models.collected_objects")
    assert frozen > others
