"""Tests the budget: which messages are admitted, in which order, and that freed bytes admit others."""

from __future__ import annotations

import asyncio
import time

import pytest

from ps_service.memory.message_budget import Budget
from ps_service.quotas.quota import Quota
from ps_service.quotas.tallies import Tally
from ps_wire.errors import OverloadedError, QuotaError
from ps_wire.limits import Limits

A, B, C = (bytes([number]) * 16 for number in range(3))


@pytest.fixture
def budget() -> Budget:
    return Budget(Limits(max_session_bytes=100, max_owner_bytes=150))


def test_a_session_without_bytes_is_admitted_with_any_size(budget: Budget) -> None:
    assert budget.admits(budget.of(A), 10_000, nested=False)


def test_a_session_is_let_in_as_far_as_its_budget_goes(budget: Budget) -> None:
    holding = budget.of(A)
    budget.take(holding, 60)
    assert budget.admits(holding, 40, nested=False)
    assert not budget.admits(holding, 41, nested=False)
    budget.release(holding, 60)
    assert budget.admits(holding, 101, nested=False)


def test_waiting_requests_have_the_budget_a_second_time(budget: Budget) -> None:
    holding = budget.of(A)
    budget.take(holding, 100)
    assert budget.admits(holding, 100, nested=True)
    assert not budget.admits(holding, 101, nested=True)


def test_above_the_owners_budget_those_are_let_in_that_hold_less_than_their_share(budget: Budget) -> None:
    budget.take(budget.of(A), 100)
    budget.take(budget.of(B), 40)
    assert not budget.admits(budget.of(A), 20, nested=False)
    assert budget.admits(budget.of(B), 30, nested=False)
    assert not budget.admits(budget.of(B), 50, nested=False)
    assert budget.admits(budget.of(C), 90, nested=False)


def test_a_session_that_is_over_counts_until_its_code_has_ended(budget: Budget) -> None:
    holding = budget.of(A)
    budget.take(holding, 100)
    budget.forget(A)
    assert budget.requests == 100
    assert budget.of(A).requests == 0
    budget.release(holding, 100)
    assert budget.requests == 0


async def test_a_waiting_message_is_admitted_when_there_is_space(budget: Budget) -> None:
    holding = budget.of(A)
    budget.take(holding, 100)
    waiting = asyncio.create_task(budget.admitted(holding, 50, nested=False, seconds=0))
    await asyncio.sleep(0)
    assert budget.paused == 1
    budget.begin_wait(holding, 100)
    await waiting
    assert (budget.paused, budget.requests, budget.waiting) == (0, 50, 100)


async def test_the_refusal_without_space_names_the_settings(budget: Budget) -> None:
    holding = budget.of(A)
    budget.take(holding, 100)
    with pytest.raises(OverloadedError, match="max_session_bytes or max_owner_bytes"):
        await budget.admitted(holding, 50, nested=False, seconds=0.01)
    assert (budget.paused, budget.refusals, holding.requests) == (0, 1, 100)


async def test_a_message_that_would_wait_for_later_ones_is_refused_at_once(budget: Budget) -> None:
    holding = budget.of(A)
    budget.take(holding, 150)
    budget.begin_wait(holding, 150)
    with pytest.raises(OverloadedError):
        await budget.admitted(holding, 60, nested=False, seconds=1000)


async def test_a_wait_that_is_given_up_leaves_nothing(budget: Budget) -> None:
    holding = budget.of(A)
    budget.take(holding, 100)
    waiting = asyncio.create_task(budget.admitted(holding, 50, nested=False, seconds=0))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (budget.paused, budget.requests) == (0, 100)


async def test_sessions_of_one_group_wait_for_each_other(budget: Budget) -> None:
    tally = Tally("ps0", "all", "all together", Quota(request_bytes=50), time.monotonic)
    budget.groups_of = lambda _: (tally,)
    budget.take(budget.of(A), 40)
    assert budget.admits(budget.of(B), 10, nested=False)
    assert budget.admits(budget.of(B), 20, nested=True)
    waiting = asyncio.create_task(budget.admitted(budget.of(B), 20, False, 30.0))
    await asyncio.sleep(0)
    assert budget.paused == 1, "although its session holds nothing"
    with pytest.raises(QuotaError, match="may use 50 of request_bytes, uses 40, and this needs 20 more"):
        raise budget.refused(budget.of(B), 20, False)
    budget.release(budget.of(A), 40)
    await waiting
    budget.release(budget.of(B), 20)
    assert budget.admits(budget.of(B), 80, nested=False), "one of any size may arrive alone"
    assert tally.used("request_bytes") == 0
