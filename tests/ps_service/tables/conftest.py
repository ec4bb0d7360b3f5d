"""Both implementations of tables, for the tests that ask for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from ps_service.tables import compiled
from ps_service.tables.shard import TableShard

MakeShard = Callable[..., TableShard]

IMPLEMENTATIONS = ["torch", *(["numba"] if compiled.available() else [])]


@pytest.fixture(params=IMPLEMENTATIONS)
def make_shard(request: pytest.FixtureRequest) -> MakeShard:
    """`TableShard` with one implementation or the other: the suite that both have to pass."""
    return partial(TableShard, implementation=request.param)
