"""Tests that tables work where numba cannot be used, and that the owner says so."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest
import torch

from ps_service.tables import compiled
from ps_service.tables.kernels import Kernels, make_kernels
from ps_service.tables.shard import TableShard
from ps_wire.tables.options import SGD, Normal


@pytest.fixture(params=["absent", "broken"])
def without_numba(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """numba is not installed, or raises when it is imported, as beside a numpy that it does not know."""
    monkeypatch.setitem(sys.modules, "numba", None)
    if request.param == "broken":
        monkeypatch.setattr(compiled, "find_spec", lambda name: object())
    compiled.available.cache_clear()
    yield request.param
    monkeypatch.undo()
    compiled.available.cache_clear()


def test_a_table_takes_the_kernels_of_torch_and_the_log_says_so_once(
    without_numba: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        assert type(make_kernels()) is Kernels
        shard = TableShard(4, SGD(0.1), Normal())
        assert shard.look_up(torch.tensor([5, -7])).shape == (2, 4)
    (told,) = [each for each in caplog.records if "tables are slower here" in each.getMessage()]
    assert told.levelname == ("WARNING" if without_numba == "broken" else "INFO")
    assert "pip install 'torch-parameter-server[tables]'" in told.getMessage()
