"""Tests of steps that wait in a round while what they wait with ends: their call, their session, or the optimizer."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from tests.integration.test_policies import Trainer, batches, hosted, trainers, waiting
from tests.waiting import until


class Held:
    """Holds the threads that offer gradients.

    Args:
        server: The owner of the one optimizer.
        offers_first: Whether they are held after the offer, and not before.
    """

    def __init__(self, server: Server, offers_first: bool) -> None:
        self._offer: Callable[..., Any] = hosted(server).aggregator.offer
        self._offers_first = offers_first
        self._held = threading.Event()
        self._go_on = threading.Event()

    def offer(self, *args: Any) -> Any:
        if self._offers_first:
            result = self._offer(*args)
            self._wait()
            return result
        self._wait()
        return self._offer(*args)

    def _wait(self) -> None:
        self._held.set()
        assert self._go_on.wait(30)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._held.wait, 30)

    def go_on(self) -> None:
        self._go_on.set()


@pytest.mark.parametrize("offers_first", [True, False], ids=["after", "before"])
async def test_a_step_that_is_cancelled_while_it_offers_does_not_count(
    monkeypatch: pytest.MonkeyPatch, offers_first: bool
) -> None:
    async with trainers(2, tc.policies.Sync(2)) as (server, (one, other)):
        held = Held(server, offers_first)
        monkeypatch.setattr(hosted(server).aggregator, "offer", held.offer)
        step = asyncio.create_task(one.step(batches(1)[0]))
        await held.reached()
        monkeypatch.undo()
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        await one.client.status()  # answered after the cancellation has arrived
        held.go_on()
        await until(lambda: waiting(server) == 0)
        steps = await asyncio.gather(*(each.step(batches(1)[0]) for each in (one, other)))
        assert [each["ps0"] for each in steps] == [1, 1]


async def test_no_round_waits_for_a_trainer_whose_session_ends_while_it_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with trainers(2, tc.policies.Sync()) as (server, (one, other)):
        aggregator, held = hosted(server).aggregator, Held(server, offers_first=False)
        monkeypatch.setattr(aggregator, "offer", held.offer)
        step = asyncio.create_task(one.step(batches(1)[0]))
        await held.reached()
        monkeypatch.undo()
        await one.client.close()
        await until(lambda: len(aggregator.membership()[0]) == 1)
        held.go_on()
        await asyncio.gather(step, return_exceptions=True)
        for _ in range(3):
            assert (await other.step(batches(1)[0])).counted == 1
        assert len(aggregator.membership()[0]) == 1


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        *((tc.policies.Sync(3), name) for name in ("net", "net.optimizer")),
        *((policy, "net.optimizer") for policy in (tc.policies.BoundedStaleness(0), tc.policies.Quorum(2, of=3))),
    ],
    ids=str,
)
async def test_steps_that_wait_end_with_their_optimizer(policy: tc.policies.Policy, name: str) -> None:
    async with trainers(3, policy) as (server, (one, other, _)):
        aggregator = hosted(server).aggregator
        step = asyncio.create_task(one.step(batches(1)[0]))
        await until(lambda: len(aggregator._offered) == 1)
        await other.client.delete(name)
        with pytest.raises(tc.errors.StaleHandleError, match="deleted or replaced"):
            await step
        await other.client.close()  # does not close a round of what is gone


async def test_the_gradients_of_an_open_round_are_applied_when_their_optimizer_ends() -> None:
    async with trainers(1, tc.policies.Quorum(2)) as (_, (one,)):
        before = await one.net.state_dict()
        await one.step(batches(1)[0])
        await one.client.delete("net.optimizer")

        async def is_applied() -> bool:
            after = await one.net.state_dict()
            return not torch.equal(after["weight"], before["weight"])

        async with asyncio.timeout(50):
            while not await is_applied():
                pass


@pytest.mark.parametrize(
    "policy",
    [tc.policies.Sync(2), tc.policies.BoundedStaleness(0), tc.policies.Async(stale=tc.policies.Compensate())],
    ids=str,
)
async def test_a_module_that_is_deleted_is_freed_although_its_steps_could_have_waited(
    policy: tc.policies.Policy,
) -> None:
    async with trainers(2, policy) as (server, pair):
        kept = weakref.ref(server.engine.registry.named("net").value)
        aggregator = weakref.ref(hosted(server).aggregator)
        for batch in batches(3):
            await asyncio.gather(*(each.step(batch) for each in pair))
        await pair[0].client.delete("net")

        def is_freed() -> bool:
            gc.collect()
            return kept() is None and aggregator() is None

        await until(is_freed)


async def _huge(trainer: Trainer) -> tc.Stepped:
    async with trainer.client.context() as ctx:
        await ctx.backward((await trainer.net(torch.full((1, 3), 3e38))).sum())
        return await trainer.opt.step(ctx)


async def test_a_round_whose_sum_is_not_finite_is_refused() -> None:
    async with trainers(2, tc.policies.Sync(2, "sum"), non_finite="refuse") as (_, group):
        before = await group[0].net.state_dict()
        steps = [asyncio.create_task(_huge(each)) for each in group]
        errors = await asyncio.gather(*steps, return_exceptions=True)
        assert [type(each) for each in errors] == [tc.errors.NonFiniteGradientError] * 2
        after = await group[0].net.state_dict()
        assert all(torch.equal(after[name], before[name]) for name in before)


async def test_a_refused_round_whose_trainers_went_on_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with trainers(1, tc.policies.Quorum(2, reduce="sum"), non_finite="refuse") as (_, (one,)):
        with caplog.at_level(logging.WARNING, logger="ps_service"):
            await asyncio.create_task(_huge(one))
            with pytest.raises(tc.errors.NonFiniteGradientError):
                await asyncio.create_task(_huge(one))
            await until(lambda: "a round of 2 gradients was not applied" in caplog.text)
