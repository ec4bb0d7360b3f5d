"""Readers of tables and modules for concurrent callers, and forwards for those who serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer_client as tc
from tests import export_models
from tests.integration.restarting import Owner
from trainer_client.serving import readers

IDS = torch.arange(50)


async def table(ps: tc.Client) -> tc.Table:
    items = await ps.table("items", 4)
    await items.upsert(IDS, torch.randn(len(IDS), 4))
    return items


async def test_what_is_asked_within_the_window_is_one_request(ps: tc.Client, counted: Callable[[], int]) -> None:
    items = await table(ps)
    reader = ps.reader(items, window_ms=50, default=7.0)
    before = counted()
    asked = [torch.tensor([[number, number + 100]]) for number in range(20)]
    found = await asyncio.gather(*(reader(ids) for ids in asked))
    assert counted() == before + 1
    for ids, each in zip(asked, found, strict=True):
        alone = await items.read(ids, default=7.0)
        assert torch.equal(each.values, alone.values) and torch.equal(each.found, alone.found)
        assert each.values.shape == (1, 2, 4) and each.versions == alone.versions
    assert repr(reader) == f"<Reader of {items!r}>"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often tables and modules were read."""
    reads: list[Any] = []
    for cls, name in ((tc.Table, "read"), (tc.RemoteModule, "for_reading")):
        plain = getattr(cls, name)

        def read(self: Any, *args: Any, plain: Any = plain, **kwargs: Any) -> Any:
            reads.append(self)
            return plain(self, *args, **kwargs)

        monkeypatch.setattr(cls, name, read)
    return lambda: len(reads)


async def test_the_window_ends_when_there_is_enough(ps: tc.Client) -> None:
    reader = ps.reader(await table(ps), window_ms=3_600_000, most=8)
    async with asyncio.timeout(60):
        found = await asyncio.gather(*(reader(IDS[:4]) for _ in range(4)))
        assert [len(each.values) for each in found] == [4] * 4
        assert len((await reader(IDS[:9])).values) == 9
        assert (await reader(IDS[:8].view(1, 8))).values.shape == (1, 8, 4)
    alone = asyncio.ensure_future(reader(IDS[:1]))
    async with asyncio.timeout(60):
        await asyncio.gather(reader(IDS[:8]), alone)


async def test_who_keeps_a_result_does_not_keep_those_of_others(ps: tc.Client) -> None:
    items, net = await table(ps), await ps.module("torch.nn.Linear", 4, 2, name="net")
    rows, results = ps.reader(items, window_ms=20), ps.reader(net, window_ms=20)
    kept, _, result, _ = await asyncio.gather(
        rows(IDS[:1]), rows(IDS), results(torch.ones(1, 4)), results(torch.ones(50, 4))
    )
    for each in (kept.values, kept.found, result):
        assert each.untyped_storage().nbytes() == each.nbytes


async def test_a_caller_that_is_wrong_or_goes_away_fails_no_other(ps: tc.Client) -> None:
    reader = ps.reader(await table(ps), window_ms=20)
    gone, right = reader(IDS), reader(IDS[:2])
    for wrong in [reader(torch.ones(2)), reader(torch.ones(2, dtype=torch.bool)), reader([1, 2])]:
        with pytest.raises(tc.errors.InvalidArgumentError, match="are a tensor of int64 or int32, not"):
            await wrong
    gone.cancel()
    assert (await right).found.all()
    with pytest.raises(tc.errors.InvalidArgumentError, match="ids alone"):
        await reader(IDS, IDS)


async def test_a_module_is_read_in_evaluation_mode_without_gradients(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Dropout", 0.5, name="net")
    x = torch.ones(8)
    async with ps.context() as ctx:
        assert torch.equal(await net.read(x), x) and net.training is not False
        assert not (await net.read(x.requires_grad_())).requires_grad
        with pytest.raises(RuntimeError, match="does not require grad"):
            await ctx.backward((await net.read(x)).sum())


async def test_reads_draw_no_random_numbers_of_the_client(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Dropout", 0.5, name="net")
    x, drawn = torch.ones(64), []
    for reads in (0, 3):
        ps.manual_seed(5)
        for _ in range(reads):
            await net.read(x)
        drawn.append(await net(x))
    assert torch.equal(*drawn)


async def test_callers_of_a_module_share_a_batch(ps: tc.Client, counted: Callable[[], int]) -> None:
    net = await ps.module("torch.nn.Linear", 3, 2, name="net")
    reader, before = ps.reader(net, window_ms=50), counted()
    asked = [torch.randn(number + 1, 3) for number in range(6)]
    results = await asyncio.gather(*map(reader, asked))
    assert counted() == before + 2, "the first has told whether results have a row for each sample"
    await asyncio.gather(*map(reader, asked))
    assert counted() == before + 3
    for x, result in zip(asked, results, strict=True):
        torch.testing.assert_close(result, await net.read(x))
    # Other shapes cannot be one batch.
    one, other = await asyncio.gather(reader(torch.ones(2, 3)), reader(torch.ones(2, 2, 3)))
    assert one.shape == (2, 2) and other.shape == (2, 2, 2)


async def test_results_that_are_several_are_divided(ps: tc.Client, counted: Callable[[], int]) -> None:
    net = await ps.module("torch.nn.MultiheadAttention", 4, 2, batch_first=True, name="net")
    reader, before = ps.reader(net, window_ms=50), counted()
    asked = [(torch.randn(2, 5, 4),) * 3 for _ in range(3)]
    results = await asyncio.gather(*(reader(*each) for each in asked))
    assert counted() == before + 2
    for inputs, found in zip(asked, results, strict=True):
        torch.testing.assert_close(found, await net.read(*inputs))


async def test_results_that_cannot_be_divided_are_asked_for_alone(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.LSTM", 3, 2, batch_first=True, name="net")
    reader = ps.reader(net, window_ms=50)
    asked = [torch.randn(2, 5, 3) for _ in range(3)]
    for x, found in zip(asked, await asyncio.gather(*map(reader, asked)), strict=True):
        torch.testing.assert_close(found, await net.read(x))


@pytest.mark.parametrize(
    "rounds", [[[2], [2, 3], [2, 2], [1, 3]], [[1, 3], [1, 1]], [[2, 2], [1, 1, 1, 1]], [[4, 0], [0, 4]]], ids=str
)
async def test_what_has_as_many_rows_as_a_batch_by_chance_is_not_divided(
    tmp_path: Path, rounds: list[list[int]]
) -> None:
    async with Owner(tmp_path, modules=[export_models]) as owner, tc.connect(owner.address) as ps:
        reader = ps.reader(await ps.module("tests.export_models.WithClasses", name="net"), window_ms=50)
        for sizes in rounds:
            for size, (scores, classes) in zip(
                sizes, await asyncio.gather(*(reader(torch.zeros(each, 2)) for each in sizes)), strict=True
            ):
                assert scores.shape == (size, 4) and classes.tolist() == [0, 1, 2, 3]


def test_threads_of_a_blocking_client_share_requests() -> None:
    with tc.local() as ps, ThreadPoolExecutor(8) as pool:
        net = ps.module("torch.nn.Linear", 3, 2)
        reader = ps.reader(net, window_ms=5)
        asked = [torch.randn(1, 3) for _ in range(40)]
        for x, result in zip(asked, pool.map(reader, asked), strict=True):
            torch.testing.assert_close(result, net.read(x))


@pytest.mark.parametrize(
    "arguments", [{"window_ms": float("nan")}, {"window_ms": -1}, {"most": 0}, {"default": 1.0}], ids=str
)
async def test_arguments_of_readers_are_checked(ps: tc.Client, arguments: dict[str, Any]) -> None:
    net = await ps.module("torch.nn.Linear", 3, 2)
    with pytest.raises(tc.errors.InvalidArgumentError):
        ps.reader(net, **arguments)
    with pytest.raises(tc.errors.InvalidArgumentError, match="a reader is of a table or of a module, not of 'net'"):
        ps.reader("net")  # type: ignore[arg-type]
    assert await ps.reader(net, window_ms=0)(torch.ones(1, 3)) is not None


def test_callers_get_the_containers_that_one_alone_gets() -> None:
    results = {"pair": (torch.arange(3), [torch.arange(3)]), "none": ()}
    parts = readers._split(results, [1, 2])
    expected = [{"pair": (each, [each]), "none": ()} for each in (torch.arange(1), torch.arange(1, 3))]
    assert repr(parts) == repr(expected)
