"""Tests that what does not fit is a typed error, and changes no row on any owner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch

import trainer_client as tc
from tests.conftest import StartOwner

IDS = torch.arange(6)
Owned = tuple[tc.Client, tc.Table, tc.Table]


@pytest.fixture
async def owned(start_owner: StartOwner) -> AsyncIterator[Owned]:
    """A client, a table that grows, and one of six rows, on two owners. Afterwards no row has changed."""
    addresses = [(await start_owner(name)).address for name in ("ps0", "ps1")]
    async with tc.connect(*addresses) as ps:
        items, fixed = await ps.table("items", 2, init=tc.tables.Normal(1.0)), await ps.table("fixed", 2, rows=6)
        before = [await items(IDS), await fixed(IDS)]
        yield ps, items, fixed
        assert torch.equal(await items(IDS), before[0]) and torch.equal(await fixed(IDS), before[1])
        assert [await items.size(), await fixed.size()] == [0, 0]


@contextmanager
def refused(what: object, error: type[Exception] = tc.errors.InvalidArgumentError) -> Iterator[None]:
    """The block raises this error; a failure says with what it did not."""
    with suppress(error):
        yield
        pytest.fail(f"this was accepted: {what}")


def offsets(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


BAGS: list[dict[str, Any]] = [
    {"ids": IDS.float(), "offsets": offsets(0)},
    {"ids": IDS, "offsets": offsets(0).float()},
    {"ids": IDS, "offsets": offsets(1, 2)},
    {"ids": IDS, "offsets": offsets(0, 4, 2)},
    {"ids": IDS, "offsets": offsets(0, 7)},
    {"ids": IDS, "offsets": offsets(0, -1)},
    {"ids": IDS, "offsets": offsets(0, 7), "include_last_offset": True},
    {"ids": IDS, "offsets": offsets(), "include_last_offset": True},
    {"ids": IDS, "offsets": offsets(1), "include_last_offset": True},
    {"ids": IDS, "offsets": offsets(0).to_sparse()},
    {"ids": IDS, "offsets": offsets(0).to("meta")},
    {"ids": IDS, "offsets": offsets(0), "padding_idx": 1.5},
    {"ids": IDS, "offsets": offsets(0), "padding_idx": True},
    {"ids": IDS, "offsets": offsets(0), "padding_idx": "1"},
    {"ids": IDS, "offsets": offsets(0), "padding_idx": 1 << 63},
    {"ids": IDS},
    {"ids": IDS.view(2, 3), "offsets": offsets(0)},
    {"ids": IDS.view(1, 2, 3)},
    {"ids": IDS, "offsets": offsets(0), "mode": "median"},
    {"ids": IDS, "offsets": offsets(0), "mode": "mean", "per_sample_weights": torch.ones(6)},
    {"ids": IDS, "offsets": offsets(0), "per_sample_weights": torch.ones(5)},
    {"ids": IDS, "offsets": offsets(0), "per_sample_weights": torch.ones(6, dtype=torch.int64)},
    {"ids": IDS.tolist(), "offsets": offsets(0)},
]


async def test_bags_that_do_not_fit(owned: Owned) -> None:
    ps, items, _ = owned
    async with ps.context():
        for arguments in BAGS:
            with refused(arguments):
                await items.bag(**arguments)
            with refused(arguments):
                await ps.look_up({items: arguments})


async def test_ids_that_do_not_fit(owned: Owned) -> None:
    ps, items, fixed = owned
    async with ps.context():
        for wrong in (IDS.float(), IDS.bool(), IDS.to(torch.int16), 3):
            with pytest.raises(tc.errors.InvalidArgumentError, match="int64 or int32"):
                await items(wrong)  # type: ignore[arg-type]
        for wrong in (IDS.to_sparse(), IDS.to("meta")):
            with pytest.raises(tc.errors.InvalidArgumentError, match="dense tensor with values"):
                await items(wrong)
        for outside in (-1, 6):
            with pytest.raises(tc.errors.InvalidArgumentError, match=f"and {outside} is not one"):
                await fixed(torch.tensor([2, outside]))


SETTINGS: list[dict[str, Any]] = [
    {"dim": 0},
    {"dim": -1},
    {"dim": 1 << 40},
    {"rows": 0},
    {"rows": 2.5},
    {"dtype": torch.int64},
    {"dtype": torch.float64},
    {"max_rows": 0},
    {"seed": "0"},
    {"owners": ["ps0", "ps0"]},
    {"groups": [tc.tables.RowGroup(0, 9, lr=0.1), tc.tables.RowGroup(5, 12)]},
    {"groups": [tc.tables.RowGroup(0, 9, lr=0.0)], "optimizer": tc.tables.FTRL()},
    {"groups": [tc.tables.RowGroup(0, 9, weight_decay=0.1)], "optimizer": tc.tables.FTRL()},
]


async def test_tables_that_cannot_be(owned: Owned) -> None:
    ps, _, _ = owned
    for settings in SETTINGS:
        with refused(settings):
            await ps.table("other", **{"dim": 2} | settings)
        assert [each.name for each in (await ps.status("ps1")).tables] == ["items", "fixed"], settings
    with pytest.raises(tc.errors.UnknownNameError):
        await ps.table("other", 2, owners=["ps0", "ps7"])


PARTS: list[Any] = [
    3,
    [3],
    [(None, IDS)],
    [(None, IDS, None, torch.ones(6))],
    [(None, IDS, None, None, 5)],
    [(None, IDS, None, None, 1 << 41)],
    [(None, IDS, None, None, "6")],
    [(None, IDS, None, None, True)],
    [(None, IDS, offsets(0), None, 6)],
    [(None, IDS, None, None, 6, 6)],
    [(None, IDS, offsets(1), None)],
    [(None, IDS, offsets(0, 99), None)],
    [(None, IDS, offsets(0, 5, 1), None)],
    [(None, IDS.float(), None, None)],
    [(None, IDS.view(2, 3), None, None)],
    [(None, IDS, offsets(0), torch.ones(7))],
    [(None, IDS, offsets(0), [1] * 6)],
    [(5, IDS, None, None)],
    [(None, torch.tensor([9]), None, None)],
    [(None, torch.tensor([-1]), offsets(0), None)],
]


async def test_owners_check_what_other_clients_send(owned: Owned) -> None:
    ps, _, fixed = owned
    shard = fixed.shards["ps0"]
    for parts in PARTS:
        with refused(parts, tc.PsError):
            await shard.call("look_up", parts)
        async with ps.context():
            with refused(parts, tc.PsError):
                await shard.call("look_up", parts)


async def test_the_rows_of_a_table_are_no_tensor_to_fetch(owned: Owned) -> None:
    _, items, _ = owned
    shard = items.shards["ps0"]
    for handle in (shard, items.parameters()[0]):
        with pytest.raises(tc.PsError):
            await handle.to_here()
    with pytest.raises(tc.PsError):
        await shard.call("apply", torch.ones(2))
    with pytest.raises(tc.PsError):
        await shard.call("load_state_dict", {})


async def test_more_rows_than_an_owner_may_have(pair: tc.Client) -> None:
    small = await pair.table("small", 2, max_rows=10, init=tc.tables.Zeros())
    many = torch.arange(100)
    async with pair.context() as ctx:
        with pytest.raises(tc.errors.TooLargeError, match="at most 10 are"):
            await small(many)
        rows = await small(many[:8])
        await ctx.backward(rows.sum(), step=small.optimizer)
    found = await small(many)
    assert found[:8].unique().tolist() == [pytest.approx(-0.01)] and not found[8:].any()
    assert await small.size() == 8
