"""Tests that SGD on a few rows of a table steps the same rows by the same amounts, whatever their number and size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from ps_service.training import sparse_rules


@pytest.fixture
def torch_threads() -> Iterator[Callable[[int], None]]:
    """Has torch use a number of threads in this test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


LARGE, WIDE = (70_000, 64, 5000), (4, 140_000, 6)
"""Several blocks of a table that no cache holds, and rows larger than a block."""


# One thread steps blocks, and fetches the rows of a large table beforehand if its numbers are float32.
@pytest.mark.parametrize(
    ("threads", "dtype", "rows", "features", "count"),
    [
        pytest.param(1, torch.float32, 100, 8, 0, id="no_rows"),
        pytest.param(2, torch.float32, 100, 8, 0, id="no_rows_on_two_threads"),
        pytest.param(1, torch.float32, 100, 0, 5, id="no_features"),
        pytest.param(2, torch.float32, 100, 0, 5, id="no_features_on_two_threads"),
        pytest.param(1, torch.float32, 100, 8, 5000, id="every_row_often"),
        pytest.param(1, torch.float32, *LARGE, id="large"),
        pytest.param(1, torch.float64, *LARGE, id="large_float64"),
        pytest.param(2, torch.float32, *LARGE, id="large_on_two_threads"),
        pytest.param(1, torch.float32, *WIDE, id="wide"),
    ],
)
def test_rows_are_stepped_as_one_sum(
    torch_threads: Callable[[int], None], threads: int, dtype: torch.dtype, rows: int, features: int, count: int
) -> None:
    torch_threads(threads)
    torch.manual_seed(1)
    table = torch.nn.Parameter(torch.randn(rows, features, dtype=dtype))
    ids, values = torch.randint(rows, (count,)), torch.randn(count, features, dtype=dtype)
    expected = table.detach().scatter_add(0, ids.unsqueeze(1).expand_as(values), values.mul(-0.5))
    gradient = torch.sparse_coo_tensor(ids.unsqueeze(0), values, table.shape, check_invariants=True)
    sparse_rules.step_rows(table, gradient, {"lr": 0.5, "maximize": False})
    assert torch.equal(table.detach(), expected)
