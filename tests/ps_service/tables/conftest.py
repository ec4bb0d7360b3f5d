"""Both implementations of tables, for the tests that ask for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from ps_service.tables import compiled
from ps_service.tables.checks import checked_ids
from ps_service.tables.shard import TableShard

MakeShard = Callable[..., TableShard]

IMPLEMENTATIONS = ["torch", *(["numba"] if compiled.available() else [])]


@pytest.fixture(params=IMPLEMENTATIONS)
def make_shard(request: pytest.FixtureRequest) -> MakeShard:
    """`TableShard` with one implementation or the other: the suite that both have to pass."""
    return partial(TableShard, implementation=request.param)


def train(
    shard: TableShard,
    ids: torch.Tensor,
    gradients: torch.Tensor,
    offsets: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
) -> None:
    """Looks up the rows of ids, and applies gradients of them, or of bags of them, as a pass and its step do."""
    keys, _ = shard.rows_of(checked_ids(ids, shard.rows))
    pending = shard.gradient(keys, gradients, offsets, weights, len(ids)).pending
    assert pending is not None
    shard.update(pending)
