"""Deselects tests marked `gpu` on machines without CUDA."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    with_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if with_gpu:
        config.hook.pytest_deselected(items=with_gpu)
        items[:] = [item for item in items if item not in with_gpu]
