"""Contexts that were left lying end after a while, and those in use do not."""

from __future__ import annotations

import asyncio

import pytest
import torch

import trainer_client as tc
from ps_service.requests import administration
from ps_wire.limits import Limits
from tests.integration.administering import gate_of, serving_gates, training
from tests.integration.support import GATE, until


async def test_a_context_that_was_left_lying_is_ended_and_says_how_to_keep_it(caplog: pytest.LogCaptureFixture) -> None:
    said = r"no request had used it for 0\.05 s, the limit max_context_seconds .*raise the limit there"
    async with serving_gates(Limits(max_context_seconds=0.05)) as owner, training(owner) as ps:
        net = await ps.module(torch.nn.Linear, 2, 2, name="net")
        async with ps.context() as ctx:
            loss = (await net(torch.ones(1, 2))).sum()
            await until(ps, lambda status: status.contexts == 0)
            with pytest.raises(tc.errors.ContextLostError, match=said):
                await ctx.backward(loss)
        assert owner.engine.counters.contexts_ended == {"unused": 1, "operator": 0}
        assert f"context {ctx.id} was ended: no request had used it for 0.05 s" in caplog.text


async def test_a_context_in_which_a_call_runs_is_in_use() -> None:
    async with serving_gates(Limits(max_context_seconds=0.01), threads=4) as owner, training(owner) as ps:
        gate = await ps.create(GATE)
        held = gate_of(owner)
        async with ps.context() as ctx:
            waiting = gate.wait()
            await asyncio.to_thread(held.wait_for, 1)
            owner.engine.contexts.find(ctx.id).used -= 1000.0
            for _ in range(3):
                owner.servicer.sweep()
            assert ctx.id in owner.engine.contexts
            held.open()
            assert await waiting == "through"


async def test_without_a_limit_contexts_live_as_long_as_their_session() -> None:
    async with serving_gates(Limits(max_context_seconds=0.0, lease_seconds=0.1)) as owner, training(owner) as ps:
        net = await ps.module(torch.nn.Linear, 2, 2, name="net")
        async with ps.context() as ctx:
            loss = (await net(torch.ones(1, 2))).sum()
            owner.engine.contexts.find(ctx.id).used -= 1e9
            administration.end_unused(owner.engine)
            assert ctx.id in owner.engine.contexts
            await ctx.backward(loss)


async def test_contexts_are_looked_at_although_the_leases_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_gates(Limits(max_context_seconds=50.0)) as owner, training(owner) as ps:
        net = await ps.module(torch.nn.Linear, 2, 2, name="net")
        async with ps.context() as ctx:
            await net(torch.ones(1, 2))
            owner.engine.contexts.find(ctx.id).used -= 100.0
            monkeypatch.setattr(owner.engine.sessions, "expired", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                owner.servicer.sweep()
            assert ctx.id not in owner.engine.contexts
