"""Tests that SGD on a few rows of a table steps the same rows by the same amounts, whatever their number and size."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ps_service.training import sparse_rules


@pytest.fixture(params=[1, 2], ids=["one_thread", "two_threads"])
def _torch_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_torch_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("rows", "features", "count"),
    [
        pytest.param(100, 8, 0, id="no_rows"),
        pytest.param(100, 0, 5, id="no_features"),
        pytest.param(100, 8, 5000, id="every_row_often"),
        pytest.param(80_000, 64, 5000, id="several_blocks_of_a_table_that_no_cache_holds"),
        pytest.param(40, 200_000, 50, id="rows_larger_than_a_block"),
    ],
)
def test_rows_are_stepped_as_one_sum(rows: int, features: int, count: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    table = torch.nn.Parameter(torch.randn(rows, features, dtype=dtype))
    ids, values = torch.randint(rows, (count,)), torch.randn(count, features, dtype=dtype)
    expected = table.detach().scatter_add(0, ids.unsqueeze(1).expand_as(values), values.mul(-0.5))
    gradient = torch.sparse_coo_tensor(ids.unsqueeze(0), values, table.shape, check_invariants=True)
    sparse_rules.step_rows(table, gradient, {"lr": 0.5, "maximize": False})
    assert torch.equal(table.detach(), expected)
