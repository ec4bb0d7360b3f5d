"""Threads that wait, for a lock or for an object that is being made, do not keep other requests from running."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_service.server import Server
from ps_wire.runtime.locks import ReportingLock
from tests.integration.support import COUNTER, MODELS, engine, until
from tests.integration.wire_models import MadeOnce, SlowToMake

PATIENCE = 60.0


@asynccontextmanager
async def owner(threads: int) -> AsyncIterator[tuple[Server, tc.Client]]:
    async with Server(engine(threads=threads)) as server, tc.connect(server.address) as ps:
        yield server, ps


@asynccontextmanager
async def held(lock: ReportingLock) -> AsyncIterator[None]:
    """While the block runs, some other thread has the lock."""
    has, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has.set()
            assert let_go.wait(PATIENCE)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert await asyncio.to_thread(has.wait, PATIENCE)
    try:
        yield
    finally:
        let_go.set()
        await asyncio.to_thread(thread.join, PATIENCE)


async def outside(call: Callable[[], Awaitable[Any]]) -> Any:
    """What a call gives that does not belong to the pass that is open here."""

    async def calling() -> Any:
        return await call()

    return await asyncio.create_task(calling(), context=contextvars.Context())


# Objects that are being made


async def test_requests_for_an_object_that_is_being_made_hold_no_threads() -> None:
    async with owner(threads=2) as (server, ps):
        counter = await ps.create(COUNTER)
        # One first: of two that begin in the same moment, in two threads, one would wait in its thread.
        asked = [asyncio.ensure_future(ps.create(f"{MODELS}.SlowToMake", name="slow"))]
        assert await asyncio.to_thread(SlowToMake.entered.acquire, timeout=PATIENCE)
        asked += [asyncio.ensure_future(ps.create(f"{MODELS}.SlowToMake", name="slow")) for _ in range(4)]
        status = await until(ps, lambda status: status.waiting == 4)
        assert status.threads_waiting == 0
        assert await counter.add() == 1
        SlowToMake.go_on.release()
        made = await asyncio.gather(*asked)
        assert len({each.ref.object_id for each in made}) == 1
        assert server.engine.registry.find(made[0].ref).references == 5


@pytest.mark.parametrize("elements", [1, 100_000])
async def test_a_request_that_waited_for_an_object_still_has_its_tensors(elements: int) -> None:
    async with owner(threads=2) as (server, ps):
        value = torch.ones(elements)
        asked = [asyncio.ensure_future(ps.create(f"{MODELS}.SlowToMake", value, name="slow"))]
        assert await asyncio.to_thread(SlowToMake.entered.acquire, timeout=PATIENCE)
        asked += [asyncio.ensure_future(ps.create(f"{MODELS}.SlowToMake", value, name="slow")) for _ in range(2)]
        await until(ps, lambda status: status.waiting == 2)
        SlowToMake.go_on.release()
        made = await asyncio.gather(*asked)
        assert [await each.total() for each in made] == [elements] * 3
        assert server.engine.budget.requests == 0


async def test_when_an_object_could_not_be_made_a_waiting_request_makes_it() -> None:
    async with owner(threads=2) as (_, ps):
        MadeOnce.outcomes[:] = ["fails", "fails", "is made"]
        asked = [asyncio.ensure_future(ps.create(f"{MODELS}.MadeOnce", name="once")) for _ in range(5)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        failed = [each for each in found if isinstance(each, BaseException)]
        assert len(failed) == 2 and all(isinstance(each, tc.errors.RemoteError) for each in failed)
        made = [each for each in found if not isinstance(each, BaseException)]
        assert len({each.ref.object_id for each in made}) == 1 and not MadeOnce.outcomes


async def test_a_request_for_an_object_that_is_being_made_may_be_given_up() -> None:
    async with owner(threads=2) as (server, ps):
        first = asyncio.ensure_future(ps.create(f"{MODELS}.SlowToMake", name="slow"))
        assert await asyncio.to_thread(SlowToMake.entered.acquire, timeout=PATIENCE)
        with pytest.raises(tc.errors.DeadlineExceededError):
            await ps.create(f"{MODELS}.SlowToMake", name="slow", timeout=0.1)
        SlowToMake.go_on.release()
        made = await first
        await until(ps, lambda status: status.requests_in_flight == 0 and status.waiting == 0)
        assert server.engine.registry.find(made.ref).references == 1


# Locks


async def test_seeded_constructors_do_not_wait_for_each_other() -> None:
    async with owner(threads=2) as (_, ps):
        asked = [asyncio.ensure_future(ps.create(f"{MODELS}.SlowToMake", seed=number)) for number in range(2)]
        for _ in asked:
            assert await asyncio.to_thread(SlowToMake.entered.acquire, timeout=PATIENCE)
        for _ in asked:
            SlowToMake.go_on.release()
        await asyncio.gather(*asked)


Operation = Callable[[tc.Client, Any, Any, Any], Awaitable[Any]]

OPERATIONS: dict[str, Operation] = {
    "step": lambda ps, opt, schedule, ctx: opt.step(ctx),
    "set_options": lambda ps, opt, schedule, ctx: opt.set_options(lr=0.5),
    "state": lambda ps, opt, schedule, ctx: opt.state_dict(),
    "schedule": lambda ps, opt, schedule, ctx: schedule.step(),
    "rates": lambda ps, opt, schedule, ctx: schedule.get_last_lr(),
}


@pytest.mark.filterwarnings("ignore:a second step of the same optimizer")
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_threads_that_wait_for_an_optimizer_do_not_count(operation: str) -> None:
    async with owner(threads=2) as (server, ps):
        net = await ps.module("torch.nn.Linear", 1, 1, name="net")
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        schedule = await ps.scheduler(lr_scheduler.StepLR, opt, step_size=1)
        counter = await ps.create(COUNTER)
        lock = server.engine.registry.named("net.optimizer").value.lock
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(1, 1))).sum())
            async with held(lock):
                waits = [asyncio.ensure_future(OPERATIONS[operation](ps, opt, schedule, ctx)) for _ in range(4)]
                await until(ps, lambda status: status.threads_waiting == 4)
                assert await counter.add() == 1
            await asyncio.gather(*waits)


async def test_threads_that_wait_for_the_backward_of_a_call_do_not_count() -> None:
    async with owner(threads=2) as (server, ps):
        net = await ps.module("torch.nn.Linear", 1, 1)
        counter = await ps.create(COUNTER)
        async with ps.context() as ctx:
            y = (await net(torch.ones(1, 1))).sum()
            (record,) = server.engine.contexts.find(ctx.id)._records.values()
            async with held(record._lock):
                backward = asyncio.ensure_future(ctx.backward(y))
                await until(ps, lambda status: status.threads_waiting == 1)
                assert await outside(counter.add) == 1
            await backward
