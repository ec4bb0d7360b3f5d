"""Tables that change faster than they are read have versions, which are exact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

import trainer_client as tc
from ps_service.server import Server
from ps_service.tables import reading
from tests.conftest import StartOwner
from tests.integration.tables.exports import as_read, brought, exporting
from tests.integration.tables.moving import NAMES, table_of, train
from tests.integration.tables.test_reading import IDS, Rows, all_of, known
from tests.waiting import until

Act = Callable[[], Awaitable[object]]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHANGED_BYTES", 3000)
    monkeypatch.setattr(reading, "PIECE_BYTES", 6000)


@pytest.fixture
async def owners(start_owner: StartOwner) -> list[Server]:
    return [await start_owner(name) for name in NAMES]


@pytest.fixture
async def ps(owners: list[Server]) -> AsyncIterator[tc.Client]:
    async with tc.connect(*(each.address for each in owners)) as client:
        yield client


def readers(owners: list[Server]) -> list[int]:
    """For how many readers each owner keeps changes of the table."""
    found = [[hosted.value for hosted in each.engine.registry.objects() if hosted.is_table] for each in owners]
    return [sum(len(table._readers._held) for table in tables) for tables in found]


class Hot:
    """A table all of whose rows change between any two pieces that a follower reads. `states` has all that it was."""

    def __init__(self, owners: list[Server], items: tc.Table, theirs: tc.Table, ps: tc.Client) -> None:
        self.owners, self.items, self.theirs, self.ps = owners, items, theirs, ps
        self.states: list[dict[int, bytes]] = []

    async def change(self) -> None:
        await train(self.ps, self.theirs, IDS)
        await self.theirs.remove(IDS[len(self.states) % 7 :: 9])
        self.states.append(await all_of(self.theirs))

    async def follow(self, rows: Rows, act: Act | None = None, least: int = 1) -> None:
        """Takes changes up to the first version; acts once, when so many owners keep changes for this reader."""
        async with asyncio.timeout(100), aclosing(self.items.changes(rows.version, every=0)) as changes:
            async for change in changes:
                rows.take(change)
                if change.version is not None:
                    assert rows in self.states
                    return
                if act is not None and sum(map(bool, readers(self.owners))) >= least:
                    await act()
                    act = None
                await self.change()


@pytest.fixture
async def hot(request: pytest.FixtureRequest, owners: list[Server], ps: tc.Client) -> AsyncIterator[Hot]:
    items = await table_of(ps, "items", owners=request.param)
    async with tc.connect(*(each.address for each in owners)) as other:
        made = Hot(owners, items, await other.table("items"), other)
        await made.change()
        yield made


both = pytest.mark.parametrize("hot", [["ps0", "ps1"]], indirect=True, ids=["two owners"])


@pytest.mark.parametrize(
    ("hot", "from_the_beginning"), [(["ps0"], True), (["ps0", "ps1"], False)], indirect=["hot"], ids=["all", "later"]
)
async def test_a_version_comes(hot: Hot, owners: list[Server], from_the_beginning: bool) -> None:
    rows = Rows() if from_the_beginning else await known(hot.items, Rows())
    await hot.change()
    await hot.follow(rows)
    assert rows.resets == 1 and not any(readers(owners))
    assert await known(hot.items, rows) == await all_of(hot.items) and rows.resets == 1


@both
async def test_rows_that_move_meanwhile_come_again(hot: Hot, ps: tc.Client) -> None:
    rows = Rows()
    await hot.follow(rows, lambda: ps.rebalance([hot.items]))
    assert rows.resets == 2
    assert await known(hot.items, rows) == await all_of(hot.items)


@both
async def test_an_owner_that_gives_up_costs_another_look(hot: Hot, owners: list[Server]) -> None:
    rows = Rows()

    async def give_up() -> None:
        owners[1].engine.table_budget.reclaim()
        assert readers(owners) == [1, 0, 0]

    await hot.follow(rows, give_up, least=2)
    assert rows.resets == 1
    await until(lambda: not any(readers(owners)))


@both
async def test_who_does_not_read_on_has_nothing_kept(hot: Hot, owners: list[Server]) -> None:
    async with asyncio.timeout(60), aclosing(hot.items.changes(every=0)) as changes:
        async for _ in changes:
            if any(readers(owners)):
                break
            await hot.change()
    await until(lambda: not any(readers(owners)))


@pytest.mark.parametrize("hot", [["ps0"]], indirect=True, ids=["one owner"])
async def test_an_export_has_versions_while_it_is_trained(hot: Hot, ps: tc.Client, tmp_path: Path) -> None:
    is_over = asyncio.Event()

    async def training() -> None:
        while not is_over.is_set():
            await train(hot.ps, hot.theirs, IDS)
            hot.states.append(await all_of(hot.theirs))

    going_on = asyncio.ensure_future(training())
    try:
        async with exporting(ps, tmp_path):
            versions = []
            for _ in range(3):
                steps = len(hot.states)
                await until(lambda: len(hot.states) > steps)  # noqa: B023
                versions.append(await brought(tmp_path))
    finally:
        is_over.set()
        await going_on
    assert len({each.number for each in versions}) == 3
    assert all(as_read(each) in hot.states for each in versions)
