"""Tests of look-ups for later batches while a program trains on earlier ones."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any

import pytest
import torch

import trainer_client as tc
from trainer_client.errors import InvalidArgumentError, StaleHandleError

COUNT = 7
BATCHES = [torch.tensor([0, 10 * number + 1, 10 * number + 2]) for number in range(COUNT)]
"""All have the id 0, so that every look-up depends on every step before; and two new ids."""

DEPTHS = [0, 1, 2, 100]


async def awaited(batches: list[Any]) -> AsyncIterator[Any]:
    """Batches that have to be awaited."""
    for batch in batches:
        await asyncio.sleep(0)
        yield batch


SOURCES: dict[str, Callable[[list[Any]], Any]] = {"plain": iter, "awaited": awaited}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> Callable[[list[Any]], Any]:
    return SOURCES[request.param]


@pytest.fixture(params=["pending", "coroutine"])
def form(request: pytest.FixtureRequest) -> Callable[[tc.Table], Callable[[Any], Awaitable[torch.Tensor]]]:
    """Makes the two forms of a function that looks up."""

    def look_up_in(items: tc.Table) -> Callable[[Any], Awaitable[torch.Tensor]]:
        async def look_up(ids: torch.Tensor) -> torch.Tensor:
            await asyncio.sleep(0)
            return await items(ids)

        return items if request.param == "pending" else look_up

    return look_up_in


PENDING, COROUTINE = ("plain", "pending"), ("awaited", "coroutine")
over_ways = pytest.mark.parametrize(
    ("source", "form", "depth"),
    [
        *((*way, depth) for way in (PENDING, COROUTINE) for depth in DEPTHS),
        *(("plain", "coroutine", 2), ("awaited", "pending", 2)),
    ],
    indirect=["source", "form"],
)
"""Each depth with each source and each form of a function, and with depth 2 all of both."""


async def counting(ps: tc.Client, **more: Any) -> tc.Table:
    """A table whose rows begin with 0 and gain 1 with each step."""
    return await ps.table("items", 1, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros(), **more)


async def started(ps: tc.Client, rows: int) -> None:
    """Waits until the table on the owner has so many rows."""
    async with asyncio.timeout(60):
        while (await ps.status()).tables[0].rows < rows:
            pass


@over_ways
async def test_what_is_looked_up_lacks_depth_steps_and_its_staleness_says_so(
    ps: tc.Client, source: Callable[[list[Any]], Any], form: Any, depth: int
) -> None:
    items = await counting(ps, policy=tc.policies.Async(tc.policies.Reject(1000)))
    seen = []
    async for ids, looked_up in ps.prefetch(source(BATCHES), form(items), depth=depth):
        number, begun = len(seen), min(len(seen) + depth + 1, COUNT)
        # Without waiting for it, the owner gets the look-ups of the batches up to this depth ...
        if depth:
            await started(ps, 1 + 2 * begun)
        async with looked_up.context as ctx:
            rows = await looked_up
            # ... and of no more.
            assert await items.size() == 1 + 2 * begun
            stepped = await ctx.backward(-rows.sum(), step=items.optimizer)
        lacking = min(number, depth)
        assert rows[0].item() == number - lacking and stepped.staleness == lacking
        assert torch.equal(ids, BATCHES[number])
        seen.append(ids)
    assert len(seen) == COUNT
    assert (await items(torch.tensor([0, 1, 62, 5]))).flatten().tolist() == [COUNT, 1, 1, 0]


async def test_depth_0_has_the_bits_of_a_program_without_prefetching(ps: tc.Client) -> None:
    torch.manual_seed(0)
    batches = [torch.randint(0, 20, (8,)) for _ in range(6)]
    net = await ps.module(torch.nn.Linear, 3, 1, name="net", seed=0)

    async def step(ctx: tc.Context, items: tc.Table, rows: torch.Tensor) -> torch.Tensor:
        loss = (await net(rows)).square().sum()
        await ctx.backward(loss, step=items.optimizer)
        return loss.detach()

    losses: list[list[torch.Tensor]] = [[], []]
    one, other = [await ps.table(name, 3, tc.tables.LazyAdam(lr=0.1)) for name in ("one", "other")]
    for ids in batches:
        async with ps.context() as ctx:
            losses[0].append(await step(ctx, one, await one(ids)))
    async for _, looked_up in ps.prefetch(batches, other, depth=0):
        async with looked_up.context as ctx:
            losses[1].append(await step(ctx, other, await looked_up))
    assert torch.equal(*map(torch.stack, losses))
    assert torch.equal(await one(torch.arange(20)), await other(torch.arange(20)))


async def test_policies_count_the_steps_that_a_look_up_lacks(ps: tc.Client) -> None:
    items = await counting(ps, policy=tc.policies.Async(tc.policies.Reject(1)))
    found: list[tc.Stepped] = []
    async for _, looked_up in ps.prefetch(BATCHES, items, depth=2):
        await started(ps, 1 + 2 * min(len(found) + 3, COUNT))
        async with looked_up.context as ctx:
            found.append(await ctx.backward(-(await looked_up).sum(), step=items.optimizer))
    # After a rejected gradient there is a step less to lack.
    assert [(each.staleness, each.dropped) for each in found] == [
        *((0, ""), (1, ""), (2, "stale"), (1, ""), (1, ""), (2, "stale"), (1, ""))
    ]


async def test_several_owners_and_tables(pair: tc.Client) -> None:
    items, users = await counting(pair), await pair.table("users", 2)

    def look_up(ids: torch.Tensor) -> tc.Pending[dict[tc.Table, torch.Tensor]]:
        return pair.look_up({items: ids, users: (ids, torch.tensor([0]), "mean")})

    opt = await pair.optimizer(None, [items, users])
    async for ids, looked_up in pair.prefetch(BATCHES, look_up, depth=1):
        async with looked_up.context as ctx:
            found = await looked_up
            assert found[items].shape == (3, 1) and found[users].shape == (1, 2)
            await ctx.backward(-found[items].sum() + found[users].sum(), step=opt)
        assert len(ids) == 3
    assert (await items(torch.tensor([0])))[0].item() == COUNT


async def test_grad_mode_is_that_of_the_loop_whatever_the_body_sets(ps: tc.Client, source: Any, form: Any) -> None:
    items = await counting(ps)
    async for _, looked_up in ps.prefetch(source(BATCHES), form(items), depth=2):
        with torch.no_grad():
            await asyncio.sleep(0)
            assert (await looked_up).requires_grad
    with torch.no_grad():
        evaluated = ps.prefetch(source(BATCHES), form(items), depth=2)
    async for _, looked_up in evaluated:
        assert not (await looked_up).requires_grad


@over_ways
async def test_errors_are_raised_at_their_batch(ps: tc.Client, source: Any, form: Any, depth: int) -> None:
    fixed = await ps.table("fixed", 1, rows=100)
    batches = [torch.tensor([1]), torch.tensor([100]), torch.tensor([1.0]), torch.tensor([2])]
    seen: list[object] = []
    async for _, looked_up in ps.prefetch(source(batches), form(fixed), depth=depth):
        try:
            async with looked_up.context:
                seen.append((await looked_up).shape)
        except InvalidArgumentError as error:
            seen.append("100" in str(error))
    assert seen == [(1, 1), True, False, (1, 1)]


async def test_a_look_up_that_is_lost_with_its_owner_fails_at_its_batch(ps: tc.Client) -> None:
    items = await counting(ps)
    failed = []
    async for ids, looked_up in ps.prefetch(BATCHES, items, depth=1):
        try:
            async with looked_up.context as ctx:
                await ctx.backward((await looked_up).sum(), step=items.optimizer)
        except StaleHandleError:
            failed.append(ids)
        if ids is BATCHES[2]:
            await looked_up
            await items.delete()
    assert failed in (BATCHES[3:], BATCHES[4:]), "one was looked up before"


@pytest.mark.parametrize("depth", [0, 2])
async def test_an_error_of_the_batches_comes_after_those_before_it(ps: tc.Client, source: Any, depth: int) -> None:
    items = await counting(ps)

    def failing() -> Iterator[torch.Tensor]:
        yield from BATCHES[:3]
        raise OSError("the disk")

    async def failing_later() -> AsyncIterator[torch.Tensor]:
        for each in failing():
            yield each

    seen = []
    batches = failing() if source is iter else failing_later()
    with pytest.raises(OSError, match="the disk"):
        async for ids, looked_up in ps.prefetch(batches, items, depth=depth):
            await looked_up
            seen.append(ids)
    assert len(seen) == 3


async def numbered(several: AsyncIterator[Any]) -> AsyncIterator[tuple[int, Any]]:
    number = 0
    async for each in several:
        yield number, each
        del each
        number += 1


class Left(Exception):
    """The body of a loop has left it."""


async def left(passes: AsyncGenerator[tuple[Any, tc.tables.LookedUp[Any]], None], items: tc.Table, end: str) -> None:
    """Trains one batch, and leaves the loop in one of several ways."""
    async for _, looked_up in passes:
        async with looked_up.context as ctx:
            await ctx.backward((await looked_up).sum(), step=items.optimizer)
        if end == "break":
            break
        if end == "raise":
            raise Left
        await asyncio.wait_for(asyncio.Event().wait(), 0)


@pytest.mark.parametrize(
    ("end", "closing", "form"),
    [
        *(("break", True, "pending"), ("break", False, "coroutine"), ("raise", True, "coroutine")),
        *(("raise", False, "pending"), ("cancel", True, "pending"), ("cancel", False, "coroutine")),
    ],
    indirect=["form"],
)
async def test_leaving_the_loop_leaves_nothing_running(ps: tc.Client, form: Any, end: str, closing: bool) -> None:
    items = await counting(ps)
    await ps.status()
    before = asyncio.all_tasks()
    # Those that are awaited have a task more that may run.
    passes = ps.prefetch(awaited(BATCHES), form(items), depth=3)
    with suppress(Left, TimeoutError):
        if closing:
            async with aclosing(passes):
                await left(passes, items, end)
            assert passes.ag_frame is None
        else:
            await left(passes, items, end)
    del passes
    async with asyncio.timeout(60):
        await asyncio.gather(*(asyncio.all_tasks() - before), return_exceptions=True)
        while (await ps.status()).contexts:
            pass


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What is freed must not need the garbage collector: a loop of large batches may run for long without it."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("depth", DEPTHS)
async def test_a_source_that_nothing_else_refers_to_is_closed_with_the_loop(ps: tc.Client, depth: int) -> None:
    items, closed = await counting(ps), asyncio.Event()

    async def endless() -> AsyncIterator[torch.Tensor]:
        try:
            while True:
                yield BATCHES[0]
        finally:
            closed.set()

    async with aclosing(ps.prefetch(endless(), items, depth=depth)) as passes:
        async for number, (_, looked_up) in numbered(passes):
            await looked_up
            if number == 3:
                break
    async with asyncio.timeout(60):
        await closed.wait()


@pytest.mark.usefixtures("without_collector")
async def test_passes_of_batches_that_are_skipped_end(ps: tc.Client, source: Any, form: Any) -> None:
    items = await counting(ps)
    async for number, (_, looked_up) in numbered(ps.prefetch(source(BATCHES), form(items), depth=2)):
        if number % 3:
            async with looked_up.context as ctx:
                await ctx.backward((await looked_up).sum(), step=items.optimizer)
    del looked_up
    async with asyncio.timeout(60):
        while (await ps.status()).contexts:
            pass


@pytest.mark.usefixtures("without_collector")
def test_passes_of_batches_that_are_skipped_end_in_a_blocking_program(owner_beside: str) -> None:
    with tc.connect(owner_beside) as ps:
        items = ps.table("skipped", 1, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros())
        for _, looked_up in ps.prefetch(BATCHES, items, depth=2):
            looked_up.wait()
        del looked_up
        last = time.monotonic() + 60
        while ps.status().contexts:
            assert time.monotonic() < last
        items.delete()


async def test_a_source_that_does_not_come_is_given_up(ps: tc.Client) -> None:
    items = await counting(ps)
    ended = []

    async def stuck() -> AsyncIterator[torch.Tensor]:
        try:
            yield BATCHES[0]
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async with aclosing(ps.prefetch(stuck(), items)) as passes:
        # The first batch is handed out while the second is waited for.
        _, looked_up = await anext(passes)
        assert (await looked_up).shape == (3, 1) and not ended
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(passes), 0.01)
        assert ended
    with pytest.raises(StopAsyncIteration):
        await anext(passes)


async def test_a_source_that_is_cancelled_cancels_the_loop(ps: tc.Client) -> None:
    async def cancelled() -> AsyncIterator[torch.Tensor]:
        raise asyncio.CancelledError
        yield

    with pytest.raises(asyncio.CancelledError):
        await anext(ps.prefetch(cancelled(), await counting(ps)))


async def test_batches_are_fetched_no_further_than_the_depth(ps: tc.Client, source: Any) -> None:
    items = await counting(ps)
    fetched: list[Any] = []

    def noted() -> Iterator[torch.Tensor]:
        for each in BATCHES:
            fetched.append(each)
            yield each

    async def noted_later() -> AsyncIterator[torch.Tensor]:
        for each in noted():
            yield each

    number = 0
    async with aclosing(ps.prefetch(noted() if source is iter else noted_later(), items, depth=2)) as passes:
        async for _, looked_up in passes:
            number += 1
            await looked_up
            await ps.status()
            assert len(fetched) == min(number + 2, COUNT)


async def test_what_does_not_fit_is_refused(ps: tc.Client) -> None:
    items = await counting(ps)
    for depth in (-1, 1.5, True, None):
        with pytest.raises(InvalidArgumentError, match="depth"):
            ps.prefetch(BATCHES, items, depth=depth)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="a function of a batch"):
        ps.prefetch(BATCHES, BATCHES)  # type: ignore[arg-type]
    async for _, looked_up in ps.prefetch([1, 2], lambda batch: batch):  # type: ignore[arg-type,return-value]
        with pytest.raises(InvalidArgumentError, match="awaited"):
            await looked_up
        assert looked_up.done() and "done" in repr(looked_up)
