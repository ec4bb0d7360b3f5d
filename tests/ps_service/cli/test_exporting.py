"""Tests `ps-service export`: its options, what it prints, and its exit codes."""

from __future__ import annotations

import signal
from contextlib import aclosing
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import ps_reader
import trainer_client as tc
from ps_service.cli.commands import app
from tests.conftest import StartProcess
from tests.forking.process import Forking
from tests.ports import ReservedPort
from tests.ps_service.cli.test_moving import run
from tests.waiting import until

IDS = torch.arange(100)


async def test_owners_of_a_group_are_exported(start_process: StartProcess, tmp_path: Path) -> None:
    first = await start_process("--name", "ps0", "--directory", "self")
    await start_process("--name", "ps1", "--directory", first.address)
    folder = tmp_path / "out"
    async with tc.connect(directory=first.address) as ps:
        await ps.find_owners(2)
        items = await ps.table("items", 2)
        await items.upsert(IDS, torch.ones(100, 2))
        await ps.module(torch.nn.Linear, 2, 2, name="net")
        code, out = await run("export", str(folder), first.address)
        assert code == 0 and "version 1: 1 tables with 100 rows, 1 modules; written " in out, out
        await items.remove(IDS[:50])
        assert await run("export", str(folder), first.address, "--table", "items", "--quiet", "--keep", "1") == (0, "")
    with ps_reader.open(folder) as reader:
        assert reader.versions() == [2] and len(reader.current.tables["items"]) == 50
    (tmp_path / "mine").touch()
    code, out = await run("export", str(tmp_path), first.address)
    assert code == 1 and "which is of no export" in out
    code, out = await run("export", str(folder / "latest.json"), first.address)
    assert code == 1 and "cannot be written" in out
    code, out = await run("export", str(folder), first.address, "--table", "none")
    assert code == 1 and "none" in out


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_an_export_follows_until_it_is_ended(
    start_process: StartProcess, forking: Forking, tmp_path: Path, how: signal.Signals
) -> None:
    owner = await start_process("--name", "ps0")
    async with tc.connect(owner.address) as ps:
        items = await ps.table("items", 2)
        program = (
            "ps_service",
            "export",
            str(tmp_path),
            owner.address,
            "--follow",
            "--every",
            "0.02",
            "--round",
            "bf16",
        )
        with forking.start(*program) as process:
            assert process.stdout.readline().startswith("version 1: 1 tables with 0 rows")
            await items.upsert(IDS, torch.ones(100, 2))
            with ps_reader.open(tmp_path, every=0.01) as reader:
                await until(lambda: len(reader.current.tables["items"]) == 100, 0.01)
            process.send_signal(how)
            assert process.wait() == 0


async def test_an_export_that_follows_waits_for_its_owner(
    start_process: StartProcess, forking: Forking, tmp_path: Path
) -> None:
    with ReservedPort() as port:
        program = ("ps_service", "export", str(tmp_path), port.address, "--follow", "--every", "0.02")
        async with aclosing(await forking.begin(*program, errors=True)) as process:
            told = (await process.stderr.readline()).decode()
            assert told.startswith(f"ps-service: no owner answers at {port.address}: "), told
            assert told.endswith("; trying again until one does\n"), told
            await start_process("--name", "ps0", "--listen", port.address)
            assert (await process.stdout.readline()).decode().startswith("version 1: 0 tables with 0 rows")


def test_options_are_checked(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(tmp_path), "--round", "fp4"])
    assert result.exit_code == 2 and "fp4" in result.output
    result = CliRunner().invoke(app, ["export", str(tmp_path), "127.0.0.1:1"])
    assert result.exit_code == 2 and "127.0.0.1:1" in result.output
