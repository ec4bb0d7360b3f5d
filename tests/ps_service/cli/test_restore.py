"""Tests `ps-service restore`: its options, what it prints, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import trainer_client as tc
from ps_service.cli.commands import app
from tests.integration.restarting import Owner


def run(*options: object) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["restore", *map(str, options)])
    return result.exit_code, result.output


@pytest.fixture
async def stopped(tmp_path: Path) -> Path:
    """The data directory of an owner with a table and a module."""
    async with Owner(tmp_path / "ps0") as owner, tc.connect(owner.address) as ps:
        items = await ps.table("items", 2)
        await ps.module(torch.nn.Linear, 1, 1, name="net")
        anonymous = await ps.module(torch.nn.Linear, 1, 1)
        async with ps.context():
            await items(torch.arange(100))
        await owner.server.drain(20)
        assert repr(anonymous)
    return tmp_path / "ps0"


def test_it_says_what_goes_where_and_how_to_go_on(stopped: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    code, out = run("--from", stopped, "--owners", "2", "--to", new, "--dry-run")
    assert code == 0 and not new.exists() and "nothing was written" in out
    code, out = run("--from", stopped, "--owners", "2", "--to", new)
    assert code == 0
    assert "ps0 also has net\n" in out and "left out: one object " in out
    assert "each with --listen, --directory and --import as before" in out
    assert f"start it with: ps-service serve --name ps1 --data-dir {new / 'ps1'}" in out
    (row,) = [line.split() for line in out.splitlines() if "items" in line]
    assert row[0] == "items" and sum(map(int, row[1:])) == 100
    assert sorted(each.name for each in new.iterdir()) == ["ps0", "ps1"]


def test_names_homes_and_owners_of_tables_are_options(stopped: Path, tmp_path: Path) -> None:
    options = ("--owners", "a, b", "--objects", "ps0=b", "--table", "items=b", "--to", tmp_path / "new")
    code, out = run("--from", stopped, *options)
    assert code == 0 and "b also has net" in out
    (row,) = [line.split() for line in out.splitlines() if "items" in line]
    assert row == ["items", "100"]
    (heading,) = [line for line in out.splitlines() if line.startswith("table")]
    assert heading.split() == ["table", "a", "b"] and len(heading) == len(heading.rstrip())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--owners", "2", "--objects", "ps0"), "--objects has the form OLD=NEW, unlike 'ps0'"),
        (("--owners", "2", "--table", "=a"), "--table has the form TABLE=NAME,NAME, unlike '=a'"),
        (("--owners", "0"), "at least one owner"),
        (("--owners", "a"), "owner 'ps0' goes, and has net"),
        (("--owners", "2", "--from", "nowhere"), "no directory nowhere"),
    ],
)
def test_what_does_not_fit_is_told_in_a_line(
    stopped: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    code, out = run("--from", stopped, "--to", tmp_path / "new", *options)
    assert code == 2 and message in out and out.startswith("ps-service: ")
    assert not (tmp_path / "new").exists()
