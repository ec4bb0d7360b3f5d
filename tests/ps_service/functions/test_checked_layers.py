"""Layers whose arguments are checked before the call: what passes there is harmless."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ps_service.functions.layers import LayerCheck
from ps_wire.limits import MIB

BAG = nn.EmbeddingBag(7, 4, mode="sum")
WHOLE = nn.EmbeddingBag(7, 4, include_last_offset=True)
LOSS = nn.CrossEntropyLoss()
NLL = nn.NLLLoss()
LSTM = nn.LSTM(3, 4)


def passes(layer: nn.Module, *args: Any, limit: int = MIB, **kwargs: Any) -> bool:
    return LayerCheck(layer).passes(args, kwargs, limit)


def ints(*numbers: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


@pytest.mark.parametrize(
    ("layer", "args", "kwargs"),
    [
        (BAG, (ints(0, 6, 3), ints(0, 1)), {}),
        (BAG, (ints(0, 6, 3, dtype=torch.int32), ints(0, 3, dtype=torch.int32)), {}),
        (BAG, (ints(0, 6, 3),), {"offsets": ints(0, 0, 2), "per_sample_weights": torch.ones(3)}),
        (BAG, (torch.zeros(2, 3, dtype=torch.int64),), {}),
        (WHOLE, (ints(0, 6, 3), ints(0, 1, 3)), {}),
        (LOSS, (torch.randn(2, 3), ints(0, 2)), {}),
        (NLL, (torch.randn(2, 3),), {"target": ints(1, 1)}),
        (LSTM, (torch.randn(5, 2, 3), (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))), {}),
    ],
)
def test_ordinary_calls_pass_and_run(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert passes(layer, *args, **kwargs)
    layer(*args, **kwargs)


@pytest.mark.parametrize(
    ("layer", "args"),
    [
        (BAG, (ints(0, 7), ints(0))),
        (BAG, (ints(0, -1), ints(0))),
        (BAG, (ints(), ints(0))),
        (BAG, (ints(0, 1), ints(1))),
        (BAG, (ints(0, 1), ints(0, 2, 1))),
        (BAG, (ints(0, 1), ints(0, 3))),
        (BAG, (ints(0, 1), ints(0, -1))),
        (BAG, (ints(0, 1), ints())),
        (BAG, (ints(0, 1), ints(0, dtype=torch.int32))),
        (BAG, (ints(0, 1), None)),
        (BAG, (ints(0, 1), ints(0), torch.ones(1))),
        (BAG, (ints(0, 1), ints(0), None, 1)),
        (BAG, (torch.zeros(2, 3, dtype=torch.int64), ints(0))),
        (BAG, (torch.zeros(2, dtype=torch.int64).to_sparse(), ints(0))),
        (BAG, (torch.zeros(1, dtype=torch.int64).expand(10_000), ints(0))),
        (WHOLE, (ints(0, 1), ints(0, 1))),
        (LOSS, (torch.randn(2, 3), ints(0, 3))),
        (LOSS, (torch.randn(2, 3), ints(0, -100))),
        (LOSS, (torch.randn(2, 3), ints(0))),
        (LOSS, (torch.randn(2, 3), torch.randn(2, 3))),
        (LOSS, (torch.randn(0, 3), ints())),
        (LOSS, (torch.randn(1, 3).expand(100_000, 3), torch.zeros(100_000, dtype=torch.int64))),
        (LSTM, (torch.randn(5, 2, 3), (torch.zeros(1, 2, 4).to_sparse(), torch.zeros(1, 2, 4)))),
    ],
)
def test_whatever_is_not_proved_harmless_goes_to_the_guard(layer: nn.Module, args: tuple[Any, ...]) -> None:
    assert not passes(layer, *args, limit=MIB // 4)
