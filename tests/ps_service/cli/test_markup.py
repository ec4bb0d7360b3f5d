"""Tests that no view takes a name for markup: names are what people have chosen, and one may have brackets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ps_service.access.token_file import TokenFile
from ps_service.cli import inspect_view, restore_view
from ps_service.cli.commands import app
from ps_service.durability.inspection import Inspected, InspectedObject
from ps_service.durability.log_inspection import InspectedLog, LoggedObject
from ps_service.durability.resharding.placement import Placement
from ps_service.durability.resharding.reshard import Result
from ps_wire.tables.routing import Routing

NAMES = ("emb[user]", "net[/x]", "[bold]head[/bold]")
"""As markup, the first loses its brackets, the second is an error, and the third loses what is in brackets."""


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


def test_checkpoints_and_logs_show_names_as_they_are(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    objects = [InspectedObject(each, f"{each}.Class", 4, 1) for each in NAMES]
    found = [Inspected(tmp_path / "of[red]", "", "ps[/0]", "1.0[red]", "2026-01-01", 1.0, 4, objects)]
    log = InspectedLog(0, 9, objects=[LoggedObject(each, f"{each}.Class", 1) for each in NAMES])
    inspect_view.show(tmp_path, found, log)
    out = capsys.readouterr().out
    lines = [line.split()[:2] for line in out.splitlines() if line.strip()]
    assert [lines.count([each, f"{each}.Class"]) for each in NAMES] == [2, 2, 2], out
    assert "of[red] of ps[/0], written 2026-01-01 by release 1.0[red]" in out
    assert ["of[red]", "whole"] in lines


def test_restored_owners_show_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    placement = Placement(NAMES, {}, dict.fromkeys(NAMES, Routing.even(NAMES)))
    restore_view.show(Result(placement, {each: Counter() for each in NAMES}, {each: [] for each in NAMES}, 0))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert ["table", *NAMES] in lines
    assert all([each, "0", "0", "0"] in lines for each in NAMES)


def test_names_of_certificates_are_shown_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    TokenFile(path).add("alice", ("trainer",), certificates=NAMES)
    ran = CliRunner().invoke(app, ["token", "list", "--file", str(path)], catch_exceptions=False)
    assert ", ".join(NAMES) in ran.output
