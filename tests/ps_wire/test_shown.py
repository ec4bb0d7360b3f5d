"""Values in error messages, also those that torch cannot print."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ps_wire import policies
from ps_wire.errors import InvalidArgumentError
from ps_wire.shown import shown


def unprintable() -> list[torch.Tensor]:
    """As they may arrive from another program."""
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    bad = torch._make_per_tensor_quantized_tensor(quantized.int_repr(), 0.1, 255)
    return [torch.zeros(3, dtype=torch.uint8).view(torch.int6), bad]


@pytest.mark.filterwarnings("ignore")  # torch's own, of dtypes that are being made or removed
def test_values_that_have_no_repr_are_shown_by_their_type() -> None:
    for each in unprintable():
        with pytest.raises((RuntimeError, NotImplementedError)):
            repr(each)
        assert shown(each) == "a value of the type Tensor"
        for wrong in (each, {"kind": each}, [each]):
            with pytest.raises(InvalidArgumentError, match="with its kind, not a value of the type"):
                policies.from_plain(wrong)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "None"), ("a", "'a'"), ("a" * 300, "'" + "a" * 199 + "…"), ({"a": 1.5}, "{'a': 1.5}")]
)
def test_others_are_shown_as_python_does(value: Any, text: str) -> None:
    assert shown(value) == text
