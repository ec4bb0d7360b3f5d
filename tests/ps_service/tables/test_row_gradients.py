"""Tests of gradients of rows that are summed when somebody needs the sums."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ps_service.passes.gradients import Gradient, Gradients, is_finite
from ps_service.tables import compiled
from ps_service.tables.hosted_table import HostedTable
from ps_service.tables.kernels import make_kernels
from ps_service.tables.row_gradients import UnsummedGradient, rows_gradient
from ps_service.tables.shard import TableShard
from ps_service.tables.stand_in import summed_rows
from ps_wire.tables import options
from ps_wire.tables.lifecycle import AfterSightings

IMPLEMENTATIONS = ["torch", *(["numba"] if compiled.available() else [])]
LARGEST = torch.finfo(torch.float32).max


def table(dtype: torch.dtype = torch.float32, optimizer: options.RowOptimizer | None = None) -> HostedTable:
    return HostedTable(
        name="items",
        dim=2,
        rows=None,
        dtype=dtype,
        init=options.to_plain(options.Normal(1.0)),
        optimizer=options.to_plain(optimizer or options.SGD(lr=0.5)),
        seed=1,
        max_rows=64,
        groups=[],
        owners=["ps0"],
    )


_bags = st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=6)


@given(_bags, st.booleans(), st.booleans(), st.integers(0, 1 << 30))
def test_positions_are_grouped_in_their_order(bags: list[list[int]], in_bags: bool, weighted: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.tensor([id for bag in bags for id in bag], dtype=torch.int64)
    sizes = torch.tensor([len(bag) for bag in bags])
    offsets = sizes.cumsum(0) - sizes if in_bags else None
    gradients = torch.randn(len(bags) if in_bags else len(ids), 3, generator=generator)
    scales = torch.randn(len(ids), generator=generator) if weighted else None
    bag_of = torch.repeat_interleave(sizes) if in_bags else torch.arange(len(ids))
    for implementation in IMPLEMENTATIONS:
        kernels = make_kernels(implementation)
        grouped = kernels.group(ids, gradients, offsets, scales)
        sums = kernels.sum(grouped)
        assert sorted(grouped.ids.tolist()) == sorted(set(ids.tolist()))
        for place, id in enumerate(grouped.ids.tolist()):
            positions = (ids == id).nonzero()[:, 0]
            begin, end = grouped.begins[place : place + 2].tolist()
            assert grouped.sources[begin:end].tolist() == bag_of[positions].tolist()
            each = gradients[bag_of[positions]] * (1 if scales is None else scales[positions, None])
            torch.testing.assert_close(sums[place], each.sum(0))


def _unsummed(keys: list[int], values: torch.Tensor, implementation: str = "torch") -> UnsummedGradient:
    kernels = make_kernels(implementation)
    return UnsummedGradient.of(kernels.group(torch.tensor(keys), values), kernels.sum)


Operation = Callable[[torch.Tensor], torch.Tensor]
_OPERATIONS: dict[str, Operation] = {
    "clone": torch.clone,
    "times": lambda gradient: gradient * 0.5,
    "divided": lambda gradient: gradient / 3,
    "added": lambda gradient: gradient + rows_gradient(torch.tensor([2, 9]), torch.ones(2, 2)),
    "added to": lambda gradient: rows_gradient(torch.tensor([2, 9]), torch.ones(2, 2)) + gradient,
    "added to itself": lambda gradient: gradient + gradient,
    "coalesced": lambda gradient: gradient.coalesce(),
    "detached": lambda gradient: gradient.detach(),
}


@pytest.mark.parametrize("name", _OPERATIONS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_operation_sees_the_sums(name: str, implementation: str) -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    gradient = _unsummed([7, 2, 7, 4], values, implementation)
    plain = rows_gradient(torch.tensor([2, 4, 7]), torch.stack([values[1], values[3], values[0] + values[2]]))
    assert (gradient.shape, gradient.dtype, gradient.is_sparse) == (plain.shape, plain.dtype, True)
    found, expected = (summed_rows(_OPERATIONS[name](each)) for each in (gradient, plain))
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert gradient.pending is None and torch.equal(gradient._values(), plain._values())


def test_torch_s_engine_adds_the_gradients_of_two_look_ups() -> None:
    items = table()
    found = items.look_up_recorded([(None, torch.tensor([3, 1, 3]), torch.tensor([0, 2]), None)] * 2, ())
    (gradient,) = torch.autograd.grad([each.sum() for each in found], [items.parameter])
    keys, values = summed_rows(gradient)
    assert keys.tolist() == [0, 1] and values.tolist() == [[4.0, 4.0], [2.0, 2.0]]


def _of_one_look_up(items: HostedTable) -> UnsummedGradient:
    (found,) = items.look_up_recorded([(None, torch.tensor([5, 8, 5]), torch.tensor([0, 1]), None)], ())
    (gradient,) = torch.autograd.grad(found, [items.parameter], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert isinstance(gradient, UnsummedGradient)
    return gradient


@pytest.mark.parametrize("optimizer", [options.SGD(lr=0.5), options.RowWiseAdagrad(lr=0.5), options.LazyAdam(lr=0.5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_needs_no_sums_and_changes_rows_as_with_them(
    optimizer: options.RowOptimizer, dtype: torch.dtype
) -> None:
    tables = [table(dtype, optimizer), table(dtype, optimizer)]
    first, second = (_of_one_look_up(items) for items in tables)
    tables[0].apply(first, {})
    assert first.pending is not None
    tables[1].apply(second.summed(), {})
    rows = [items.look_up([(None, torch.tensor([5, 8]), None, None)])[0] for items in tables]
    assert torch.equal(*rows)
    assert [
        (each.shard.statistics.gradients, each.shard.statistics.updated, each.shard.updates) for each in tables
    ] == [(3, 2, 1)] * 2


@pytest.mark.parametrize(
    ("values", "finite", "in_doubt"),
    [
        ([1.0, -2.0, 3.0], True, False),
        ([LARGEST, 1.0, -LARGEST], True, True),
        ([LARGEST, 1.0, LARGEST], False, True),
        ([1.0, float("nan"), 1.0], False, True),
        ([float("-inf"), 1.0, 1.0], False, True),
    ],
)
def test_whether_sums_are_finite(values: list[float], finite: bool, in_doubt: bool) -> None:
    gradient = _unsummed([4, 2, 4], torch.tensor(values)[:, None].repeat(1, 2))
    assert is_finite(gradient) == finite
    assert (gradient.pending is None) == in_doubt, "the sums are needed in doubt only"


def test_factors_count_for_whether_sums_are_finite() -> None:
    kernels = make_kernels("torch")
    for factor, finite in ((1e30, False), (1.0, True), (float("inf"), False)):
        grouped = kernels.group(torch.tensor([1]), torch.full((1, 2), 1e30), torch.tensor([0]), torch.tensor([factor]))
        assert is_finite(UnsummedGradient.of(grouped, kernels.sum)) == finite
    assert is_finite(
        UnsummedGradient.of(kernels.group(torch.empty(0, dtype=torch.int64), torch.empty(0, 2)), kernels.sum)
    )


def test_the_bytes_that_a_pass_holds_end_where_they_began() -> None:
    held = Gradients()
    parameter = torch.empty(0)
    for _ in range(3):
        held.add([Gradient(None, parameter, _unsummed([7, 2, 7, 4], torch.ones(4, 2)))])
    (total,) = held.all()
    assert held.nbytes == 3 * (8 + 2 * 4) == total.tensor._indices().nbytes + total.tensor._values().nbytes


def test_the_gradient_of_ids_without_a_row_is_left_out() -> None:
    shard = TableShard(2, options.SGD(1.0), admission=AfterSightings(2))
    keys, _ = shard.rows_of(torch.tensor([1, 2, 1]))
    again, _ = shard.rows_of(torch.tensor([1, 3]))
    both = torch.cat([keys, again])
    gradient = shard.gradient(both, torch.ones(5, 2), None, None, 5)
    assert summed_rows(gradient)[0].tolist() == [0] and summed_rows(gradient)[1].tolist() == [[1.0, 1.0]]
