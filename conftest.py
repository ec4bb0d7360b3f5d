"""Before torch is imported: one thread for all tests. Tests marked `gpu` are skipped where there is no CUDA."""

from __future__ import annotations

import os

import pytest

from tests.forking import shared

# Two workers with two threads each on two cores wait for each other's threads: twice the processor time, or more. What
# the environment says goes first.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Called before the conftest of the tests is imported, which takes as long as torch."""
    config = pluginmanager.get_plugin("pytestconfig")
    assert isinstance(config, pytest.Config)
    shared.begin(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked `gpu` on machines without CUDA."""
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="there is no CUDA here"))
