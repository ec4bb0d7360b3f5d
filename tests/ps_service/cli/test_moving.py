"""Tests `ps-service rebalance` and `ps-service drain`: their options, what they print, and their exit codes."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import torch
from torch import nn
from typer.testing import CliRunner

import trainer_client as tc
from ps_service.cli.commands import app
from ps_service.server import Server
from tests.conftest import StartProcess


async def run(*options: str) -> tuple[int, str]:
    # As another program, which has nothing to do with the pass that is open here.
    invoke = partial(CliRunner(env={"COLUMNS": "100"}).invoke, app, list(options))
    result = await asyncio.get_running_loop().run_in_executor(None, invoke)
    return result.exit_code, result.output


async def test_owners_join_a_group_get_rows_and_leave_it(start_process: StartProcess) -> None:
    first = await start_process("--name", "ps0", "--directory", "self")
    ids = torch.arange(2000)
    async with tc.connect(directory=first.address) as ps:
        for name in ("items", "users"):
            table = await ps.table(name, 2, tc.tables.SGD(1.0), init=tc.tables.Zeros())
            await table.upsert(ids, torch.ones(2000, 2))
        second = await start_process("--name", "ps1", "--directory", first.address)
        code, out = await run("rebalance", second.address, "--table", "items")
        assert code == 0 and "items: 8,192 slots with " in out and " from ps0 to ps1; look-ups waited" in out
        items, users = await ps.table("items"), await ps.table("users")
        assert items.owners == ["ps0", "ps1"] and users.owners == ["ps0"]
        code, out = await run("rebalance", first.address, "--json")
        (moved,) = json.loads(out)
        assert (moved["table"], moved["source"], moved["target"], moved["slots"]) == ("users", "ps0", "ps1", 8192)
        assert moved["pause"] > 0
        code, out = await run("drain", first.address, "--to", "ps1")
        assert code == 0 and out.count("from ps0 to ps1") == 2
        assert (await items(ids) == 1).all() and items.owners == ["ps1"]
        assert (await run("rebalance", first.address, "--owners", "ps1")) == (0, "nothing had to move\n")
        async with ps.context() as ctx:
            rows = await items(ids)
            code, out = await run("rebalance", first.address, "--pause", "0.05", "--patience", "0.1")
            assert code == 1 and "there was no moment without a pass" in out
            await ctx.backward(rows.sum(), step=items.optimizer)
        assert not (await items(ids)).any()


async def test_everything_with_a_name_leaves_an_owner(start_process: StartProcess, tmp_path: Path) -> None:
    first = await start_process("--name", "ps0", "--directory", "self", "--data-dir", str(tmp_path / "0"))
    second = await start_process("--name", "ps1", "--directory", first.address, "--data-dir", str(tmp_path / "1"))
    async with tc.connect(directory=first.address) as ps:
        items = await ps.table("items", 2, owners=["ps0"])
        await items.upsert(torch.arange(10), torch.ones(10, 2))
        net = await ps.module(nn.Linear, 2, 1, name="net", owner="ps0")
        await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        kept = await ps.module(nn.Linear, 2, 1, name="kept", owner="ps0")
        await ps.optimizer(torch.optim.SGD, kept.parameters(), lr=0.1, policy=tc.policies.Sync())
        code, out = await run("drain", first.address, "--to", "ps1")
        assert code == 1 and "'kept' cannot move to another owner" in out and "policy Sync" in out
        await net(torch.ones(1, 2))
        await kept(torch.ones(1, 2))
        await items(torch.arange(3))
        assert (net.owner, kept.owner, items.owners) == ("ps1", "ps0", ["ps1"])
        await ps.delete("kept")
        code, out = await run("drain", second.address, "--to", "ps0")
        assert code == 0 and "items: 16,384 slots with 10 rows from ps1 to ps0" in out
        assert "net, net.optimizer: " in out and " from ps1 to ps0; requests waited" in out
        assert await run("drain", second.address) == (0, "nothing had to move\n")


async def test_what_cannot_be_is_refused(owner: Server, ps: tc.Client) -> None:
    await ps.table("items", 2)
    for command, options, message in (
        ("drain", ("--to", "ps0"), "to other owners, and there is none"),
        ("drain", ("--to", "ps7"), "ps7"),
        ("rebalance", ("--owners", " , "), "at least one owner"),
        ("rebalance", ("--table", "none"), "none"),
    ):
        code, out = await run(command, owner.address, *options)
        assert code == 1 and message in out, out


async def test_nobody_answers() -> None:
    assert (await run("rebalance", "127.0.0.1:1"))[0] == 2
    assert (await run("drain", "127.0.0.1:1"))[0] == 2
