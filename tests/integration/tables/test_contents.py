"""Tests of what programs do with rows besides training them: putting, removing, exporting, restoring, evicting."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.tables import reading
from tests.conftest import StartOwner
from tests.integration.tables.test_life_of_rows import Clock, shard_of, train
from trainer_client.tables.files import LIST, PartsWriter

IDS = torch.tensor([4, -7, 1 << 60, 11, 12, 13, 14])
ADAM = tc.tables.LazyAdam(lr=0.1)


async def contents(items: tc.Table) -> dict[int, dict[str, Any]]:
    """All rows by id; each is there once."""
    found: dict[int, dict[str, Any]] = {}
    async for block in items.blocks():
        for position, id in enumerate(block["ids"].tolist()):
            assert id not in found
            found[id] = {name: each[position].tolist() for name, each in block.items() if name != "age"}
    return found


async def test_rows_that_are_put_with_their_state_go_on_as_where_they_came_from(pair: tc.Client) -> None:
    items = await pair.table("items", 3, ADAM, init=tc.tables.Normal(1.0))
    for _ in range(3):
        await train(pair, items, IDS)
    twin = await pair.table("twin", 3, ADAM, init=tc.tables.Zeros(), owners=["ps1"])
    async for block in items.blocks():
        state = {name.removeprefix("state."): each for name, each in block.items() if name.startswith("state.")}
        assert set(state) == {"moment", "square", "steps"}
        await twin.upsert(block["ids"], block["values"], state)
    assert await contents(twin) == await contents(items)
    await asyncio.gather(train(pair, items, IDS), train(pair, twin, IDS))
    assert torch.equal(await twin(IDS), await items(IDS))
    await twin.upsert(IDS[:2].int(), torch.ones(2, 3, dtype=torch.float64))
    found = await contents(twin)
    assert found[4]["values"] == [1.0] * 3 and found[4]["state.steps"] == [4.0], "the state stays"
    async for block in items.blocks(state=False):
        assert block.keys() == {"ids", "values"}


async def test_rows_that_are_put_need_not_be_admitted(pair: tc.Client) -> None:
    items = await pair.table("items", 1, admit=tc.tables.AfterSightings(9), dtype=torch.bfloat16)
    await items.upsert(IDS, torch.arange(7.0)[:, None])
    assert (await items(IDS))[:, 0].tolist() == list(range(7))
    assert await items.remove(torch.tensor([[4, 4], [11, 99]])) == 2
    assert (await items(IDS))[:, 0].tolist() == [0, 1, 2, 0, 4, 5, 6] and await items.size() == 5


UNFIT: list[Any] = [
    (IDS.float(), torch.ones(7, 2)),
    (IDS.view(7, 1), torch.ones(7, 2)),
    (IDS[[0, 1, 0]], torch.ones(3, 2)),
    (IDS, torch.ones(7, 3)),
    (IDS, torch.ones(6, 2)),
    (IDS, torch.ones(7, 2, dtype=torch.int64)),
    (IDS, [[1.0, 1.0]] * 7),
    (IDS, torch.full((7, 2), float("nan"))),
    (IDS, torch.ones(7, 2), {"sum": torch.full((7, 1), float("inf"))}),
    (IDS, torch.ones(7, 2), {"sum": torch.ones(7)}),
    (IDS, torch.ones(7, 2), {"sum": torch.ones(7, 2)}),
    (IDS, torch.ones(7, 2), {"moment": torch.ones(7, 1)}),
    (IDS, torch.ones(7, 2), {"sum": torch.ones(7, 1), "more": torch.ones(7, 1)}),
]


async def test_rows_that_do_not_fit_are_put_nowhere(pair: tc.Client) -> None:
    items = await pair.table("items", 2, tc.tables.RowWiseAdagrad(lr=0.1), init=tc.tables.Normal(1.0))
    await train(pair, items, IDS[:3])
    before = await contents(items)
    for number, arguments in enumerate(UNFIT):
        with pytest.raises((tc.errors.InvalidArgumentError, tc.errors.NonFiniteGradientError)):
            await items.upsert(*arguments)
        assert await contents(items) == before, number


async def test_a_quota_holds_for_rows_that_are_put(pair: tc.Client) -> None:
    items = await pair.table("items", 1, max_rows=10)
    with pytest.raises(
        tc.errors.TooLargeError, match=r"table 'items' has 0 rows on owner 'ps0', and these .*: at most 10"
    ):
        await items.upsert(torch.arange(100), torch.ones(100, 1))
    assert await items.size() == 0
    await items.upsert(torch.arange(8), torch.ones(8, 1))
    with pytest.raises(
        tc.errors.TooLargeError, match=r"'items' has \d rows on owner 'ps.', .* with a larger max_rows,"
    ):
        async with pair.context():
            await items(torch.arange(100))
    fixed = await pair.table("fixed", 1, rows=5)
    with pytest.raises(tc.errors.InvalidArgumentError, match="5"):
        await fixed.upsert(torch.tensor([5]), torch.ones(1, 1))
    with pytest.raises(tc.errors.InvalidArgumentError):
        await fixed.remove(torch.tensor([-1]))
    await fixed.upsert(torch.tensor([4]), torch.ones(1, 1))
    assert await contents(fixed) == {4: {"ids": 4, "values": [1.0]}}


def blocks() -> list[Any]:
    ids, rows, sums = torch.arange(3), torch.ones(3, 2), torch.ones(3, 1)
    whole = {"ids": ids, "values": rows, "state.sum": sums}
    return [
        *(None, 3, [], {}, {"ids": ids}, whole | {"ids": ids.float()}, whole | {"ids": ids.view(3, 1)}),
        *(whole | {"values": rows.half()}, whole | {"values": rows[:2]}, whole | {"ids": torch.tensor([1, 1, 2])}),
        *(
            whole | {"age": rows[:, 0]},
            whole | {"age": ids[:2]},
            whole | {"more": ids},
            whole | {"ids": torch.tensor(3)},
        ),
        *(whole | {"values": rows / 0}, whole | {"values": rows.to_sparse()}, whole | {"values": [1.0]}),
        *(whole | {"in_use": ids}, whole | {"in_use": torch.ones(2, dtype=torch.bool)}, {**whole, 3: ids}),
    ]


async def test_owners_check_what_other_clients_put(ps: tc.Client) -> None:
    items = await ps.table(
        "items", 2, tc.tables.RowWiseAdagrad(lr=0.1), evict=tc.tables.Eviction(at_capacity="least_recent")
    )
    shard = items.shards["ps0"]
    for block in blocks():
        with pytest.raises(tc.PsError):
            await shard.call("put", block)
    for method, arguments in [
        *(("read_block", (-1, True)), ("read_block", (1.5, True)), ("read_block", (True, True)), ("remove", ([1],))),
        *(("remove", (IDS.float(),)), ("evict", (0, True, 5)), ("evict", (1.5, False, 5)), ("evict", (None, False, 5))),
        *(
            ("evict", ("1", False, 5)),
            ("evict", (float("nan"), False, 5)),
            ("expire", (0,)),
            ("load_state_dict", ({},)),
        ),
    ]:
        with pytest.raises(tc.PsError):
            await shard.call(method, *arguments)
    assert await items.size() == 0
    block, following = await shard.call("read_block", 1 << 40, True)
    assert (len(block["ids"]), following) == (0, None)


async def test_expired_rows_are_named_before_they_go(start_owner: StartOwner) -> None:
    owners = [await start_owner(name) for name in ("ps0", "ps1")]
    async with tc.connect(*(each.address for each in owners)) as ps:
        evict = tc.tables.Eviction(ttl=100, at_capacity="least_recent", spare=0)
        items, clock = await ps.table("items", 1, evict=evict), Clock()
        for each in owners:
            shard_of(each, "items", clock)
        ids = torch.arange(1000)
        async with ps.context():
            await items(ids[:900])
            clock.now += 50
            await items(ids[400:])
        clock.now += 50
        planned = await items.evict(dry_run=True)
        assert planned.rows == 400 == sum(planned.by_owner.values()) and await items.size() == 1000
        assert len(planned.sample) == 100 and planned.sample.max() < 400
        assert all(shard_of(each, "items").size for each in owners)
        part = await items.evict(0.1, dry_run=True)
        assert part.rows == sum(shard_of(each, "items").size // 10 for each in owners) and part.sample.max() < 400
        assert (await items.evict(0.1)).by_owner == part.by_owner
        assert (await items.evict()).rows == 400 - part.rows
        assert (await items.evict()).rows == 0 and await items.size() == 600
        plain = await ps.table("plain", 1)
        for wanted in ({}, {"share": 0.5}, {"dry_run": True}):
            with pytest.raises(tc.errors.InvalidArgumentError, match="evict="):
                await plain.evict(**wanted)
        for share in (0, -1, 1.5, float("nan"), True):
            with pytest.raises(tc.errors.InvalidArgumentError, match="share"):
                await items.evict(share)


async def test_a_cleared_table_begins_anew(owner: Any, ps: tc.Client) -> None:
    items = await ps.table("items", 64, init=tc.tables.Normal(1.0), admit=tc.tables.AfterSightings(2, counters=1 << 17))
    ids = torch.arange(5000)
    for _ in range(2):
        async with ps.context():
            await items(ids)
    (full,) = (await ps.status()).tables
    await items.clear()
    (empty,) = (await ps.status()).tables
    assert (full.rows, empty.rows) == (5000, 0) and empty.bytes * 4 < full.bytes
    async with ps.context():
        await items(ids[:10])
    assert await items.size() == 0, "sightings are forgotten, too"


async def test_contents_are_read_and_changed_inside_a_context_without_being_part_of_it(pair: tc.Client) -> None:
    items = await pair.table("items", 2, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros())
    async with pair.context() as ctx:
        rows = await items(IDS)
        async with aclosing(items.blocks()) as found:
            async for block in found:
                assert not block["values"].requires_grad
                break
        await items.upsert(IDS[:1], torch.ones(1, 2))
        await ctx.backward(rows.sum(), step=items.optimizer)
    assert (await items(IDS))[:, 0].tolist() == [0.0, *[-1.0] * 6]


@pytest.mark.parametrize(
    ("format", "dtype"),
    [("safetensors", torch.bfloat16), *(("parquet", each) for each in (torch.float32, torch.float16, torch.bfloat16))],
)
async def test_an_export_is_restored_into_other_owners(
    start_owner: StartOwner, tmp_path: Path, dtype: torch.dtype, format: Any
) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow")
    addresses = [(await start_owner(name)).address for name in ("a", "b", "c")]
    async with tc.connect(*addresses) as ps:
        options = {"dim": 3, "optimizer": ADAM, "init": tc.tables.Normal(1.0), "dtype": dtype}
        items = await ps.table(
            "items", **options, owners=["a", "b"], evict=tc.tables.Eviction(at_capacity="least_frequent")
        )
        for count in (40, 30, 20):
            await train(ps, items, torch.arange(count) * 1_000_003)
        await items.remove(torch.tensor([0]))
        before = await contents(items)
        assert await items.export(tmp_path / "rows", format=format) == 39
        other = await ps.table("other", **options, evict=tc.tables.Eviction(at_capacity="least_frequent"))
        await train(ps, other, torch.tensor([0, 1, 2]))
        new = tmp_path / "new"
        new.touch()
        assert {each.stat().st_mode for each in (tmp_path / "rows").iterdir()} == {new.stat().st_mode}
        assert await other.restore(tmp_path / "rows") == 39
        assert await contents(other) == before
        assert await items.restore(tmp_path / "rows", state=False) == 39
        found = await contents(items)
        assert {id: each["values"] for id, each in found.items()} == {id: each["values"] for id, each in before.items()}
        assert not any(each["state.steps"][0] for each in found.values())


async def test_an_export_of_a_table_that_is_trained_has_each_lasting_row_once(
    pair: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 400)
    items = await pair.table("items", 2, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros())
    ids = torch.arange(600)
    async with pair.context():
        await items(ids)
    seen, blocks = [], 0
    async for block in items.blocks():
        seen.append(block["ids"])
        # Each block is as of one moment: between two steps all rows are the same.
        assert len(block["values"][block["ids"] < 600].unique()) <= 1
        if blocks % 8 == 0:
            await train(pair, items, ids)
            await items.remove(1000 + torch.arange(blocks))
            async with pair.context():
                await items(1000 + torch.arange(blocks + 8))
        blocks += 1
    there, counts = torch.cat(seen).unique(return_counts=True)
    assert blocks > 10 and torch.equal(there[there < 600], ids) and bool((counts[:600] == 1).all())


async def test_what_is_no_whole_export_of_such_rows_changes_nothing(pair: tc.Client, tmp_path: Path) -> None:
    items = await pair.table("items", 2, ADAM, init=tc.tables.Normal(1.0))
    await train(pair, items, IDS)
    before, folder = await contents(items), tmp_path / "rows"
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"no table\.json"):
        await items.restore(folder)
    await items.export(folder)
    with pytest.raises(tc.errors.InvalidArgumentError, match="not empty"):
        await items.export(folder)
    with pytest.raises(tc.errors.InvalidArgumentError, match="format"):
        await items.export(tmp_path / "new", format="csv")  # type: ignore[arg-type]
    wide, other = await pair.table("wide", 3, ADAM), await pair.table("other", 2, tc.tables.SGD())
    with pytest.raises(tc.errors.InvalidArgumentError, match="2 numbers, and the table of 3"):
        await wide.restore(folder)
    with pytest.raises(tc.errors.InvalidArgumentError, match="state=False"):
        await other.restore(folder)
    assert await other.restore(folder, state=False) == 7
    (part,) = folder.glob("rows-*")
    whole = part.read_bytes()
    for damaged in (whole[:-5], b"", b"not tensors at all"):
        part.write_bytes(damaged)
        with pytest.raises(tc.errors.InvalidArgumentError, match="rows-00001"):
            await items.restore(folder)
    part.write_bytes(whole)
    for listed in ("{}", "[]", "nothing", '{"version": 99}'):
        (folder / "table.json").write_text(listed)
        with pytest.raises(tc.errors.InvalidArgumentError):
            await items.restore(folder)
    assert await contents(items) == before


async def test_an_export_with_changed_bytes_is_refused_before_a_row_has_changed(
    pair: tc.Client, tmp_path: Path
) -> None:
    items = await pair.table("items", 2, ADAM, init=tc.tables.Normal(1.0))
    await train(pair, items, IDS)
    before, folder = await contents(items), tmp_path / "rows"
    await items.export(folder)
    (part,) = folder.glob("rows-*")
    whole = bytearray(part.read_bytes())
    for place in (-1, -6, len(whole) // 2):
        damaged = whole.copy()
        damaged[place] ^= 0x40
        part.write_bytes(damaged)
        with pytest.raises(tc.errors.InvalidArgumentError, match="rows-00001"):
            await items.restore(folder)
        assert await contents(items) == before


@pytest.mark.parametrize(
    ("values", "options", "error"),
    [
        pytest.param([[1.0], [float("nan")]], {}, tc.errors.NonFiniteGradientError, id="NaN"),
        pytest.param(
            [[1.0], [1e30]], {"dtype": torch.float16}, tc.errors.NonFiniteGradientError, id="too large for float16"
        ),
        pytest.param([[1.0], [2.0]], {"rows": 5}, tc.errors.InvalidArgumentError, id="no such row"),
        pytest.param([[1.0], [2.0]], {"optimizer": ADAM}, tc.errors.InvalidArgumentError, id="other state"),
    ],
)
async def test_rows_of_an_export_that_do_not_fit_are_refused_before_a_row_has_changed(
    pair: tc.Client, tmp_path: Path, values: list[list[float]], options: dict[str, Any], error: type[Exception]
) -> None:
    # Files as another program may write them: without hashes.
    block = {"ids": torch.tensor([1, 70]), "values": torch.tensor(values), "state.moment": torch.zeros(2, 1)}
    writer = PartsWriter(tmp_path / "rows", "safetensors", "items", 1, torch.float32, "")
    writer.begin()
    writer.add(block if "optimizer" in options else {name: block[name] for name in ("ids", "values")})
    writer.finish()
    listed = json.loads((tmp_path / "rows" / LIST).read_text())
    for part in listed["parts"]:
        del part["sha256"]
    (tmp_path / "rows" / LIST).write_text(json.dumps(listed))
    items = await pair.table("items", 1, **options)
    await items.upsert(torch.tensor([0, 1, 2]), torch.ones(3, 1))
    before = await contents(items)
    with pytest.raises(error):
        await items.restore(tmp_path / "rows")
    assert await contents(items) == before


def test_the_blocking_client_has_the_same(owner_beside: str, tmp_path: Path) -> None:
    with tc.connect(owner_beside) as ps:
        items = ps.table("items", 2, evict=tc.tables.Eviction(ttl=1e6))
        items.upsert(IDS, torch.ones(7, 2))
        assert sum(len(block["ids"]) for block in items.blocks()) == 7
        assert items.export(str(tmp_path / "rows")) == 7
        assert items.remove(IDS[:2]) == 2 and items.evict().rows == 0
        assert items.restore(str(tmp_path / "rows")) == 7 and items.size() == 7
        items.clear()
        assert items.size() == 0 and list(items.blocks()) == []
