"""The attacks of `make attack` that are quick, and its report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.attack import attacks
from tests.attack.attack import ATTACKS, Attack, Skipped
from tests.attack.report import show, write
from tests.attack.run import tried
from tests.attack.scene import Scene
from tests.conftest import ROOT

QUICK = [each for each in ATTACKS.values() if each.quick]


@pytest.mark.parametrize("attack", QUICK, ids=[each.name for each in QUICK])
async def test_it_holds(attack: Attack) -> None:
    outcome = await tried(attack)
    assert outcome.words == "holds"
    assert outcome.tried


def made(run: object) -> Attack:
    return Attack("name", "tries | this", "that", run, True, False)  # type: ignore[arg-type]


async def test_what_does_not_hold_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def answered(at: Scene) -> None:
        await at.refused(at.innocent.ps.status(), "status")

    async def refused(at: Scene) -> None:
        await at.refused(at.innocent.ps.delete("net"), "delete")

    async def absent(at: Scene) -> None:
        raise Skipped("there is no such thing")

    found = [await tried(made(each)) for each in (answered, refused, absent)]
    assert found[0].broken.startswith("status: it was answered with")
    assert [(each.broken, each.skipped) for each in found[1:]] == [("", ""), ("", "there is no such thing")]
    write(found, tmp_path)
    told = json.loads((tmp_path / "attacks.json").read_text())
    assert [each["outcome"] for each in told] == ["broken", "held", "skipped"]
    assert r"tries \| this (1 tries" in (tmp_path / "attacks.md").read_text()
    show(found)
    assert "1 hold, 1 do not, 1 could not be tried" in capsys.readouterr().out


def test_security_md_names_every_attack() -> None:
    assert attacks.MODULES
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    named = re.findall(r"`attack ([\w ,]+)`", page)
    assert set(", ".join(named).split(", ")) == set(ATTACKS)
