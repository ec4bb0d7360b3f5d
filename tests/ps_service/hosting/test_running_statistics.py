"""Tests which layers take turns, and that torch's compiler is not imported to find out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ps_service.hosting.running_statistics import with_statistics


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))


def compiled_in_place() -> nn.Module:
    module = block()
    module[0].compile(backend="eager")
    return module


def test_layers_with_statistics_are_found() -> None:
    module = block()
    assert with_statistics(nn.Sequential(module)) == [module[1]]


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(lambda: torch.compile(block(), backend="eager"), id="whole"),
        pytest.param(lambda: nn.Sequential(block(), torch.compile(nn.Linear(2, 2), backend="eager")), id="a part"),
        pytest.param(compiled_in_place, id="in place"),
    ],
)
def test_compiled_modules_are_not_changed(module: object) -> None:
    assert callable(module)
    assert with_statistics(module()) == []
