"""Tests of what an owner prints when it serves."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import trainer_client as tc
from ps_service.cli.serving import _tell
from tests.owner_processes import ROOT, owner_processes

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


async def test_full_collections_pass_over_what_an_owner_has_imported() -> None:
    async with owner_processes() as start:
        owner = await start("--import", "tests.hosted_models", PYTHONPATH=str(ROOT))
        async with tc.connect(owner.address) as ps:
            frozen, others = await ps.call("tests.hosted_models.collected_objects")
    assert frozen > others
