"""Tests of what an owner prints when it serves."""

from __future__ import annotations

import logging
import sys
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

import trainer_client as tc
from ps_service.cli.serving import _tell
from tests.forking.process import Forking

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


async def test_full_collections_pass_over_what_an_owner_has_imported(forking: Forking) -> None:
    options = ("--listen", "127.0.0.1:0", "--import", "tests.hosted_models")
    async with aclosing(await forking.begin("tests.ps_service.cli.unfrozen", "serve", *options)) as process:
        address = (await process.stdout.readline()).decode().split()[-1]
        async with tc.connect(address) as ps:
            frozen, others = await ps.call("tests.hosted_models.collected_objects")
    assert frozen > others
