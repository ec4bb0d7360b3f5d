"""Tests that an optimizer has what collects gradients for rounds only once it has had a policy."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch import optim

from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.sessions.gate import Gate
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.round_gradients import Contribution
from ps_wire.errors import DrainingError, StaleHandleError
from ps_wire.policies import Async, Sync
from tests.ps_service.training.owned import Owner

ONE, OTHER = b"1" * 16, b"2" * 16


def plain() -> tuple[Engine, HostedOptimizer]:
    engine, optimizer = Engine("ps0", AllowList()), Owner([(1,)]).optimizer(optim.SGD, lr=1.0)
    for trainer in (ONE, OTHER):
        engine.memberships.add(trainer, optimizer)
    return engine, optimizer


def test_an_optimizer_without_a_policy_collects_nothing() -> None:
    engine, optimizer = plain()
    engine.memberships.change_policy(optimizer, Async())
    engine.memberships.remove(ONE, optimizer)
    assert optimizer.aggregator is None and optimizer.rounds is None
    assert [*optimizer.trainers] == [OTHER]


def test_the_first_round_waits_for_trainers_that_came_before_the_policy() -> None:
    engine, optimizer = plain()
    engine.memberships.forget(ONE)
    engine.memberships.change_policy(optimizer, Sync(2))
    assert optimizer.rounds is not None and optimizer.rounds is optimizer.aggregator
    engine.memberships.add(ONE, optimizer)
    assert [*optimizer.rounds.membership()[0]] == [OTHER, ONE]
    engine.memberships.remove(OTHER, optimizer)
    assert [*optimizer.rounds.membership()[0]] == [ONE]


def test_a_policy_can_end_and_come_again() -> None:
    engine, optimizer = plain()
    engine.memberships.change_policy(optimizer, Sync(2))
    first = optimizer.rounds
    engine.memberships.change_policy(optimizer, Async())
    assert first is not None and optimizer.rounds is None
    engine.memberships.change_policy(optimizer, Sync(1))
    assert optimizer.rounds is first and first.policy == Sync(1) and len(first.membership()[0]) == 2


async def test_a_policy_that_comes_while_the_owner_stops_lets_no_step_wait() -> None:
    engine, optimizer = plain()
    engine.gate.state = Gate.State.STOPPED
    engine.memberships.change_policy(optimizer, Sync(2))
    assert optimizer.rounds is not None
    _, future = optimizer.rounds.offer(ONE, Contribution([torch.ones(1)], None), None)
    with pytest.raises(DrainingError, match="about to stop"):
        await asyncio.wrap_future(future)


async def test_a_policy_that_comes_after_the_optimizer_is_gone_lets_no_step_wait() -> None:
    engine, optimizer = plain()
    optimizer.end()
    engine.memberships.change_policy(optimizer, Sync(2))
    assert optimizer.rounds is not None
    with pytest.raises(StaleHandleError, match="deleted or replaced"):
        optimizer.rounds.offer(ONE, Contribution([torch.ones(1)], None), None)
