"""Tests of making tables, finding them, and looking up in them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_wire.tables.routing import slots_of
from tests.conftest import StartOwner
from trainer_client.tables.table import delete_rows

IDS = torch.tensor([3, -7, 1 << 60, 3, 11, 12, 13, 14])


async def test_a_table_is_found_with_the_same_arguments_and_with_its_name(pair: tc.Client) -> None:
    made = await pair.table("items", 4, tc.tables.RowWiseAdagrad(lr=0.1))
    assert made.owners == ["ps0", "ps1"]
    for found in (await pair.table("items", 4, tc.tables.RowWiseAdagrad(lr=0.1)), await pair.table("items")):
        assert (found.name, found.dim, found.rows, found.row_optimizer) == (
            "items",
            4,
            None,
            tc.tables.RowWiseAdagrad(lr=0.1),
        )
        assert torch.equal(await found(IDS), await made(IDS))
    with pytest.raises(tc.errors.UnknownNameError, match="users"):
        await pair.table("users")


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"dim": 5}, "dim=4, not 5"),
        ({"optimizer": tc.tables.SGD(lr=0.2)}, r"with lr=0.1 of optimizer, not 0.2\. Ask"),
        ({"optimizer": tc.tables.Adagrad(eps=1e-6)}, r"with optimizer=SGD\(lr=0.1\), not Adagrad\(eps=1e-06\)\. Ask"),
        (
            {"groups": [tc.tables.RowGroup(1, 5, lr=0.5)]},
            r"with groups=\[\], not \[RowGroup\(low=1, high=5, lr=0.5\)\]\. Ask",
        ),
        ({"evict": tc.tables.Eviction(ttl=60.0)}, r"with evict=None, not Eviction\(ttl=60.0\)\. Ask"),
        ({"rows": 10}, "rows=None, not 10"),
        ({"dtype": torch.float16}, "dtype=torch.float32, not torch.float16"),
        ({"owners": ["ps0"]}, "owners="),
        ({"seed": 1, "init": tc.tables.Zeros()}, "init=.* and seed=0, not 1"),
    ],
    ids=str,
)
async def test_other_arguments_are_a_conflict_that_names_them(pair: tc.Client, other: dict, named: str) -> None:
    await pair.table("items", 4, tc.tables.SGD(lr=0.1))
    with pytest.raises(tc.errors.NameConflictError, match=named):
        await pair.table("items", **{"dim": 4, "optimizer": tc.tables.SGD(lr=0.1)} | other)


async def test_what_is_asked_of_a_table_that_exists_is_compared_also_without_dim(pair: tc.Client) -> None:
    groups = [tc.tables.RowGroup(1, 2, lr=1.0), tc.tables.RowGroup(5, 6, lr=2.0)]
    more: dict[str, Any] = {"dtype": torch.bfloat16, "max_rows": 9, "groups": groups, "policy": tc.policies.Async()}
    await pair.table("items", 4, tc.tables.RowWiseAdagrad(lr=0.1), **more, non_finite="apply")
    for same in (
        {},
        {"optimizer": tc.tables.RowWiseAdagrad(lr=0.1)},
        more,
        {"owners": ["ps1", "ps0"], "replace": True},
    ):
        assert (await pair.table("items", **same)).dtype is torch.bfloat16
    for other, named in (
        ({"optimizer": tc.tables.Adagrad(lr=0.7)}, r"optimizer=RowWiseAdagrad\(lr=0.1\), not Adagrad\(lr=0.7\)"),
        ({"rows": 7, "replace": True}, "rows=None, not 7.*dim= and replace=True"),
        ({"dtype": torch.float32}, "dtype=torch.bfloat16, not torch.float32"),
        ({"max_rows": 4}, "max_rows=9, not 4"),
        ({"seed": 1}, "seed=0, not 1"),
        ({"init": tc.tables.Zeros()}, r"init=Normal\(\), not Zeros\(\)"),
        ({"owners": ["ps0"]}, r"owners=\['ps0', 'ps1'\], not \['ps0'\]"),
        ({"evict": tc.tables.Eviction(ttl=1.0)}, "evict=None, not"),
        ({"groups": []}, "groups="),
        ({"non_finite": "refuse"}, "non_finite"),
        ({"policy": tc.policies.Sync(2)}, "Sync"),
    ):
        with pytest.raises(tc.errors.NameConflictError, match=named):
            await pair.table("items", **other)
    with pytest.raises(tc.errors.UnknownNameError, match=r"other.*give dim= as well"):
        await pair.table("other", optimizer=tc.tables.SGD())


async def test_arguments_that_say_the_same_attach(pair: tc.Client) -> None:
    groups = [tc.tables.RowGroup(1, 2, lr=1), tc.tables.RowGroup(5, 6, lr=2.0)]
    made = await pair.table("items", 4, tc.tables.LazyAdam(lr=1, betas=(0, 0.9)), groups=groups, owners=["ps1", "ps0"])
    again = (tc.tables.LazyAdam(lr=1.0, betas=(0.0, 0.9)), groups[::-1], ["ps0", "ps1"])
    there = await pair.table("items", 4, again[0], groups=again[1], owners=again[2])
    assert made.owners == there.owners


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"name": 3}, "the name of a table is a text, not 3"),
        ({"owners": "ps0"}, r'owners= is a list of names, such as \["ps0", "ps1"\], not \'ps0\''),
        ({"init": torch.zeros(3)}, "init= is one of tc.tables.Normal.*, not a Tensor"),
        ({"optimizer": torch.optim.Adam}, "optimizer= is one of tc.tables.SGD"),
        (
            {"groups": tc.tables.RowGroup(1, 2)},
            r"groups= is a list of values such as tc.tables.RowGroup.*, not RowGroup\(low=1",
        ),
        ({"groups": [3]}, "groups= is a list"),
        ({"evict": 3.0}, r"evict= is tc.tables.Eviction\(…\), not 3.0"),
        ({"admit": 3}, "admit= is one of tc.tables.AfterSightings"),
    ],
    ids=str,
)
@pytest.mark.parametrize("dim", [None, 2])
async def test_arguments_of_another_kind_are_refused(
    pair: tc.Client, given: dict[str, Any], named: str, dim: int | None
) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match=named):
        await pair.table(**{"name": "items", "dim": dim} | given)


async def test_what_some_owners_have_made_is_removed_when_another_refuses(pair: tc.Client) -> None:
    await pair.module(torch.nn.Linear, 2, 2, name="items", owner="ps1")
    with pytest.raises(tc.errors.NameConflictError, match="Linear"):
        await pair.table("items", 4)
    assert not [each.name for each in (await pair.status("ps0")).objects]
    await pair.table("other", 4, owners=["ps1"])
    with pytest.raises(tc.errors.NameConflictError, match="owners="):
        await pair.table("other", 4)
    with pytest.raises(tc.errors.InvalidArgumentError, match="not a table"):
        await pair.table("items", owners=["ps1"])


async def test_every_client_routes_alike_whatever_the_order_of_its_addresses(start_owner: StartOwner) -> None:
    addresses = [(await start_owner(name)).address for name in ("b", "a", "c")]
    ids = torch.randint(-(1 << 62), 1 << 62, (3000,), generator=torch.Generator().manual_seed(0))
    async with tc.connect(*addresses) as ps, tc.connect(*reversed(addresses)) as other:
        here, there = await ps.table("items", 2), await other.table("items", 2)
        assert here.owners == there.owners == ["a", "b", "c"]
        async with ps.context():
            rows = await here(ids)
        assert torch.equal(await there(ids), rows.detach())
        assert await there.size() == 3000
        for position, owner in enumerate(here.owners):
            count = int((slots_of(ids) * 3 // 16384 == position).sum())
            (table,) = (await ps.status(owner)).tables
            assert table.rows == count
    async with tc.connect(addresses[0], addresses[1]) as fewer:
        with pytest.raises(tc.errors.UnknownNameError, match="c"):
            await fewer.table("items")


async def test_rows_come_into_being_in_passes_and_not_outside_of_them(pair: tc.Client) -> None:
    items = await pair.table("items", 4, init=tc.tables.Normal(1.0))
    before = await items(IDS.view(2, 4))
    assert before.shape == (2, 4, 4) and before.unique().numel() > 20
    assert torch.equal(before[0, 0], before[0, 3])
    assert await items.size() == 0
    with torch.no_grad():
        async with pair.context():
            assert torch.equal(await items(IDS), before.view(8, 4))
    assert await items.size() == 0
    async with pair.context():
        found = await items(IDS.int().where(IDS.abs() < 100, 3))
        assert found.requires_grad
    assert await items.size() == 6


async def test_one_request_to_each_owner_for_several_tables(pair: tc.Client) -> None:
    items, users = await pair.table("items", 4), await pair.table("users", 2, rows=50, owners=["ps1"])
    bags, ids = (IDS, torch.tensor([0, 3])), torch.arange(50).view(5, 10)
    before = [_calls(await pair.status(owner)) for owner in ("ps0", "ps1")]
    found = await pair.look_up({items: bags, users: ids})
    assert [_calls(await pair.status(owner)) for owner in ("ps0", "ps1")] == [each + 1 for each in before]
    assert torch.equal(found[items], await items.bag(*bags))
    assert torch.equal(found[users], await users(ids))
    with pytest.raises(tc.errors.InvalidArgumentError, match="at least one"):
        await pair.look_up({})
    with pytest.raises(tc.errors.InvalidArgumentError, match="tuple"):
        await pair.look_up({items: 3})


def _calls(status: object) -> int:
    return sum(each.calls for each in status.operations if each.name == "call")  # type: ignore[attr-defined]


async def test_duplicates_are_not_sent(owner: object, ps: tc.Client) -> None:
    items = await ps.table("items", 64)
    traffic = owner.engine.counters.traffic  # type: ignore[attr-defined]
    before = sum(each.received for each in traffic.values())
    await items(torch.zeros(100_000, dtype=torch.int64))
    assert sum(each.received for each in traffic.values()) - before < 1000


async def test_ids_of_a_table_of_fixed_size_are_sent_in_four_bytes(owner: object, ps: tc.Client) -> None:
    fixed = await ps.table("fixed", 2, rows=1 << 31, init=tc.tables.Normal(1.0))
    ids = torch.arange(50_000) * 40_000 + ((1 << 31) - 1 - 49_999 * 40_000)
    traffic = owner.engine.counters.traffic  # type: ignore[attr-defined]
    before = sum(each.received for each in traffic.values())
    bags = await fixed.bag(ids.view(-1, 10))
    assert sum(each.received for each in traffic.values()) - before < 4 * len(ids) + 4 * len(bags) + 1000
    # First values depend on the id alone, and those of this table go in eight bytes.
    rows = await (await ps.table("items", 2, init=tc.tables.Normal(1.0)))(ids)
    torch.testing.assert_close(bags, rows.view(-1, 10, 2).sum(1))
    assert torch.equal(await fixed(ids), rows) and int(ids[-1]) == (1 << 31) - 1


async def test_a_table_can_be_deleted(pair: tc.Client) -> None:
    items = await pair.table("items", 4)
    await items.delete()
    with pytest.raises(tc.errors.StaleHandleError):
        await items(IDS)
    with pytest.raises(tc.errors.UnknownNameError):
        await items.delete()
    assert not (await pair.status("ps1")).optimizers
    assert (await pair.table("items", 5)).dim == 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
async def test_rows_of_16_bits(pair: tc.Client, dtype: torch.dtype) -> None:
    items = await pair.table("items", 8, tc.tables.SGD(lr=1.0), dtype=dtype, init=tc.tables.Zeros())
    async with pair.context() as ctx:
        rows = await items(IDS)
        assert rows.dtype is dtype
        assert (await items.bag(IDS.view(2, 4))).dtype is torch.float32
        await ctx.backward(rows.float().sum(), step=items.optimizer)
    # The gradient of an id that occurs twice is 2, exactly.
    assert (await items(IDS))[:, 0].tolist() == [-2.0, -1.0, -1.0, -2.0, -1.0, -1.0, -1.0, -1.0]


async def test_status_and_metrics_say_how_large_a_table_is(owner: object, ps: tc.Client) -> None:
    items = await ps.table("items", 4)
    async with ps.context() as ctx:
        await ctx.backward((await items(IDS)).sum(), step=items.optimizer)
    status = await ps.status()
    (table,) = status.tables
    assert (table.name, table.rows, table.dim, table.updates) == ("items", 7, 4, 1)
    assert table.bytes >= 7 * 4 * 4
    assert [(each.name, each.parameters) for each in status.objects] == [("items", 28)]
    assert [(each.name, each.parameters, each.version) for each in status.optimizers] == [("items.optimizer", 28, 1)]
    assert (status.parameters, status.bytes) == (28, table.bytes)


@pytest.mark.parametrize("asked", ["", "ps1"])
async def test_a_table_is_deleted_by_its_name_from_all_owners(pair: tc.Client, asked: str) -> None:
    items = await pair.table("items", 4)
    await items.upsert(IDS.unique(), torch.ones(7, 4))
    await pair.delete("items", owner=asked)
    for owner in ("ps0", "ps1"):
        status = await pair.status(owner)
        assert not status.objects and not status.tables and not status.optimizers
    again = await pair.table("items", 4)
    assert await again.size() == 0
    with pytest.raises(tc.errors.UnknownNameError):
        await pair.delete("other")


async def test_what_is_left_of_a_table_can_be_deleted(pair: tc.Client) -> None:
    items = await pair.table("items", 4)
    await delete_rows(items.shards["ps1"].session, "items")
    await pair.delete("items")
    assert not (await pair.status("ps0")).objects
    with pytest.raises(tc.errors.UnknownNameError):
        await pair.delete("items")


async def test_a_client_that_is_not_connected_to_all_owners_of_a_table_does_not_delete_it(
    start_owner: StartOwner,
) -> None:
    addresses = [(await start_owner(name)).address for name in ("a", "b")]
    async with tc.connect(*addresses) as ps, tc.connect(addresses[0]) as fewer:
        items = await ps.table("items", 2)
        await items.upsert(IDS.unique(), torch.ones(7, 2))
        with pytest.raises(tc.errors.UnknownNameError, match=r"'items' has rows on a, b, and was not deleted.*'b'"):
            await fewer.delete("items")
        assert await items.size() == 7


@pytest.mark.parametrize("kind", ["rows", "bags", "largest"])
async def test_the_unique_ratio_counts_ids_as_often_as_a_program_gives_them(pair: tc.Client, kind: str) -> None:
    items = await pair.table("items", 2)
    ids = torch.tensor([5, 9, 5, -3, 5, 14, 9, 11])
    offsets = torch.tensor([0, 3])
    for _ in range(3):
        async with pair.context() as ctx:
            found = items(ids) if kind == "rows" else items.bag(ids, offsets, "max" if kind == "largest" else "sum")
            await ctx.backward((await found).sum(), step=items.optimizer)
    tables = [table for owner in items.owners for table in (await pair.status(owner)).tables]
    assert [each.name for each in tables] == ["items"] * 2
    by_owner = torch.bincount(items.routing.owner_of(ids)).tolist()
    assert [each.gradients for each in tables] == [3 * count for count in by_owner]
    assert sum(each.updated for each in tables) == 3 * 5
    # Trainers ask for a row once.
    assert sum(each.looked_up for each in tables) == 3 * (8 if kind == "bags" else 5)
