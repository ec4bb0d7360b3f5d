"""Steps of rows that are made again from their gradients give the same rows bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ps_service.tables.kernels import Grouped
from ps_service.tables.row_steps import RowSteps
from ps_service.tables.shard import TableShard
from ps_wire.codec.payload import PayloadReader, PayloadWriter, joined
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.options import FTRL, SGD, Adagrad, LazyAdam, PartialRowWiseAdam, RowGroup, RowWiseAdagrad
from tests.ps_service.tables.test_row_changes import (
    ADMISSIONS,
    EVICTIONS,
    IDS,
    IMPLEMENTATION,
    MOST,
    OPERATIONS,
    Clock,
    Run,
    same,
    state_of,
)

OPTIMIZERS = [
    SGD(0.5),
    SGD(0.5, momentum=0.9, weight_decay=0.1),
    Adagrad(0.1, weight_decay=0.2),
    RowWiseAdagrad(0.1),
    LazyAdam(0.1, weight_decay=0.1),
    PartialRowWiseAdam(0.1),
    FTRL(0.1, l1=0.1),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
GROUPS = [RowGroup(2, 9, lr=0.3, weight_decay=0.05)]


@pytest.fixture(autouse=True)
def always_less() -> Iterator[None]:
    with patch.object(RowSteps, "nbytes", lambda *_: 0):
        yield


class StepsRun(Run):
    """Tells steps as gradients where that is possible, and changes as a log gives them back. Of several ids in a bag
    each has a factor, and some come twice."""

    def new(self) -> TableShard:
        options = {"groups": GROUPS if isinstance(self.options["optimizer"], LazyAdam) else (), **self.options}
        return TableShard(2, seed=5, implementation=IMPLEMENTATION, clock=self.clock, max_rows=MOST, **options)

    def _step(self, keys: torch.Tensor, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        offsets = weights = None
        count = len(keys)
        if seed % 3:
            keys, offsets = torch.cat([keys, keys[:2]]), torch.tensor([0, len(keys) // 2])
            weights = torch.randn(len(keys), generator=generator) if seed % 3 == 1 else None
            count = 2
        drawn = torch.randn(count, 2, generator=generator)
        gradients = self.shard.gradient(keys, drawn, offsets, weights, len(keys)).pending
        assert gradients is not None
        self.shard.update(gradients)
        with self.shard.lock:
            self.changes.note(self.shard.steps.change(gradients) or self.shard.images(gradients.ids))
        kept = self.changes.kept
        payload = PayloadWriter()
        message = Encoder(payload).encode(dict(kept[-1].values))
        read = Decoder(PayloadReader(joined(payload.chunks, payload.nbytes))).decode(message)
        kept[-1] = kept[-1]._replace(values=read)


@settings(max_examples=50)
@example([("train", [1, 2]), ("rate",), ("train", [2, 3])], None, None, SGD(0.5), torch.float32)
@example([("late", [1, 2]), ("remove", [1]), ("look", [1]), ("late", [2])], None, None, Adagrad(0.1), torch.float32)
@given(
    OPERATIONS,
    st.sampled_from(EVICTIONS),
    st.sampled_from(ADMISSIONS),
    st.sampled_from(OPTIMIZERS),
    st.sampled_from(DTYPES),
)
def test_steps_made_again_give_the_same_rows(
    operations: list[Any], eviction: Any, admission: Any, optimizer: Any, dtype: torch.dtype
) -> None:
    run = StepsRun(Clock(), optimizer=optimizer, eviction=eviction, admission=admission, dtype=dtype)
    run.run(operations)
    again = run.new()
    for count, change in enumerate(run.changes.kept, 1):
        again.redo(change)
        if count in run.states:
            assert same(state_of(again), run.states[count])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(OPTIMIZERS))
def test_wide_rows_in_other_places_get_the_same_bits(seed: int, optimizer: Any) -> None:
    generator = torch.Generator().manual_seed(seed)
    one, other = (TableShard(67, optimizer, seed=5, implementation=IMPLEMENTATION) for _ in range(2))
    other.look_up(torch.arange(1000, 1003))
    ids = torch.randperm(200, generator=generator)
    other.look_up(ids.flip(0))
    for _ in range(4):
        chosen = ids[torch.randint(200, (500,), generator=generator)]
        offsets = torch.arange(0, 500, 5)
        keys, _, _ = one.pooled_rows_of(chosen, offsets, None, False)
        gradients = one.gradient(keys, torch.randn(100, 67, generator=generator), offsets, None, 500).pending
        assert gradients is not None
        one.update(gradients)
        with one.lock:
            change = one.steps.change(gradients)
            other.redo(change or one.images(gradients.ids))
    assert (change is not None) == (IMPLEMENTATION == "numba")
    assert torch.equal(one.look_up(ids), other.look_up(ids))
    for name, rows in one._rows.states.items():
        assert torch.equal(rows.read(one._map.find(ids)), other._rows.states[name].read(other._map.find(ids)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_rows_in_float32_are_stepped_by_loops_that_repeat(dtype: torch.dtype) -> None:
    for implementation in {IMPLEMENTATION, "torch"}:
        shard = TableShard(2, SGD(0.5), dtype=dtype, implementation=implementation)
        gradients = Grouped.of_different(shard.rows_of(torch.arange(3))[0], torch.ones(3, 2))
        shard.update(gradients)
        is_stepped = shard.steps.change(gradients) is not None
        assert is_stepped == (dtype is torch.float32 and implementation == "numba")


def test_a_step_of_rows_that_have_gone_has_images() -> None:
    shard = TableShard(2, SGD(0.5), implementation=IMPLEMENTATION)
    gradients = Grouped.of_different(shard.rows_of(torch.arange(3))[0], torch.ones(3, 2))
    shard.update(gradients)
    shard.remove(torch.tensor([1]))
    assert shard.steps.change(gradients) is None


@pytest.mark.skipif(IMPLEMENTATION != "numba", reason="there is no numba here")
def test_an_owner_without_the_loops_does_not_make_such_a_step_again() -> None:
    shard, other = (TableShard(2, SGD(0.5), implementation=each) for each in ("numba", "torch"))
    gradients = Grouped.of_different(shard.rows_of(torch.arange(3))[0], torch.ones(3, 2))
    shard.update(gradients)
    other.look_up(torch.arange(3))
    change = shard.steps.change(gradients)
    assert change is not None
    with pytest.raises(InvalidArgumentError, match="install numba"):
        other.redo(change)


@given(IDS)
def test_rows_that_are_not_there_are_left_out(ids: list[int]) -> None:
    shard, other = (TableShard(2, Adagrad(0.5), implementation=IMPLEMENTATION) for _ in range(2))
    gone = torch.tensor(ids).unique()
    ids_there = torch.arange(50, 55)
    keys, _ = shard.rows_of(torch.cat([gone, ids_there]))
    gradients = Grouped.of_different(keys, torch.randn(len(keys), 2))
    shard.update(gradients)
    other.look_up(ids_there)
    if (change := shard.steps.change(gradients)) is not None:
        other.redo(change)
        assert torch.equal(shard.look_up(ids_there), other.look_up(ids_there)) and other.size == 5
