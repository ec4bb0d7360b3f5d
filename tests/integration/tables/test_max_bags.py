"""Tests of bags with mode "max", held to torch.nn.EmbeddingBag bit for bit, gradients and equal numbers included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import trainer_client as tc
import trainer_client.nn as layers
from tests.conftest import StartOwner

ROWS, DIM = 30, 4


def whole(seed: int, *shape: int) -> torch.Tensor:
    """Whole numbers from -2 to 2, many of them equal."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


async def filled(ps: tc.Client, name: str, values: torch.Tensor, **more: Any) -> tc.Table:
    """A table whose rows are these: one step from zero."""
    items = await ps.table(name, DIM, tc.tables.SGD(lr=1.0), rows=ROWS, init=tc.tables.Zeros(), **more)
    async with ps.context() as ctx:
        await ctx.backward((await items(torch.arange(ROWS)) * -values).sum(), step=items.optimizer)
    return items


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_results_and_gradients_are_those_of_torch(start_owner: StartOwner, count: int) -> None:
    addresses = [(await start_owner(f"ps{number}")).address for number in range(count)]
    async with tc.connect(*addresses) as ps:
        items = await filled(ps, "items", whole(0, ROWS, DIM))
        local = nn.EmbeddingBag(ROWS, DIM, mode="max", padding_idx=3)
        with torch.no_grad():
            local.weight.copy_(whole(0, ROWS, DIM))
        generator = torch.Generator().manual_seed(1)
        for offsets in (torch.tensor([0, 0, 7, 30, 60, 60]), torch.arange(0, 60, 6)):
            ids = torch.randint(0, ROWS, (60,), generator=generator)
            weights = whole(2, len(offsets), DIM)
            local.zero_grad()
            expected = local(ids, offsets)
            (expected * weights).sum().backward()
            async with ps.context() as ctx:
                found = await items.bag(ids, offsets, "max", padding_idx=3)
                assert found.dtype == torch.float32 and torch.equal(found, expected)
                await ctx.backward((found * weights).sum(), step=items.optimizer)
            with torch.no_grad():
                local.weight -= local.weight.grad  # type: ignore[operator]
            assert torch.equal(await items(torch.arange(ROWS)), local.weight)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(bags=st.lists(st.lists(st.integers(0, ROWS - 1), max_size=6), max_size=8), last=st.booleans())
def test_any_bags_outside_of_a_pass(shared: Any, bags: list[list[int]], last: bool) -> None:
    items, values = shared
    ids = torch.tensor([id for bag in bags for id in bag], dtype=torch.int64)
    sizes = torch.tensor([0, *(len(bag) for bag in bags)]).cumsum(0)
    offsets = sizes if last else sizes[:-1]
    expected = torch.stack([values[bag].amax(0) if bag else torch.zeros(DIM) for bag in bags]) if bags else None
    found = items.bag(ids, offsets, "max", include_last_offset=last)
    assert torch.equal(found, torch.zeros(0, DIM) if expected is None else expected)


@pytest.fixture
def shared(owner_beside: str) -> Any:
    with tc.connect(owner_beside) as ps:
        values = whole(4, ROWS, DIM)
        items = ps.table("of any bags", DIM, tc.tables.SGD(lr=1.0), rows=ROWS, init=tc.tables.Zeros())
        with ps.context() as ctx:
            ctx.backward((items(torch.arange(ROWS)) * -values).sum(), step=items.optimizer)
        yield items, values
        items.delete()


async def test_rows_of_16_bits_and_bags_of_one_size(ps: tc.Client) -> None:
    items = await filled(ps, "items", whole(0, ROWS, DIM), dtype=torch.bfloat16)
    ids = torch.tensor([[1, 2], [2, 2]])
    found = await items.bag(ids, mode="max")
    assert found.dtype == torch.float32
    assert torch.equal(found, whole(0, ROWS, DIM)[ids].amax(1))


async def test_several_tables_in_one_look_up(pair: tc.Client) -> None:
    values = whole(5, ROWS, DIM)
    items, users = await filled(pair, "items", values), await filled(pair, "users", -values)
    ids, offsets = torch.tensor([4, 5, 6, 4]), torch.tensor([0, 2])
    found = await pair.look_up({items: (ids, offsets, "max"), users: {"ids": ids, "offsets": offsets, "mode": "sum"}})
    assert torch.equal(found[items], torch.stack([values[[4, 5]].amax(0), values[[6, 4]].amax(0)]))
    assert torch.equal(found[users], -torch.stack([values[[4, 5]].sum(0), values[[6, 4]].sum(0)]))


def test_weights_go_with_sums_only(owner_beside: str) -> None:
    with tc.connect(owner_beside) as ps:
        items = ps.table("no weights", DIM, rows=ROWS)
        layer = layers.EmbeddingBag(items, "max")
        with pytest.raises(tc.errors.InvalidArgumentError, match="mode='sum'"):
            layer(torch.tensor([1]), torch.tensor([0]), torch.ones(1))
        assert torch.equal(layer(torch.tensor([[1, 1]])), items(torch.tensor([1])))
        items.delete()
