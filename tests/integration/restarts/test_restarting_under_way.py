"""Passes and requests that are under way when their owner stops or crashes."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim

import trainer_client as tc
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import LookupRequest, RegisterRequest, RendezvousRequest
from tests.integration.restarting import TALLY, Owner, Told, owners, step
from tests.integration.support import AFFINE, GATE, bits, until


async def test_open_passes_finish_and_new_requests_wait(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 2, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    async with tc.connect(owner.address) as stranger, ps.context() as ctx:
        loss = (await net(torch.ones(1, 4))).sum()
        draining = asyncio.create_task(owner.server.drain(20))
        await until(ps, lambda status: not status.serving)
        loss = loss + (await net(torch.ones(1, 4))).sum()  # a second call of the pass
        other = asyncio.create_task(step(ps, opt, net, torch.ones(1, 4)), context=contextvars.Context())
        made = stranger.create(TALLY)
        # Who is in a pass may do more than call and step before it ends.
        await opt.set_options(0, lr=0.05)
        await (await ps.attach("net")).state_dict()
        await ctx.backward(loss)
        assert await opt.step(ctx) == {"ps0": 1}
        assert not draining.done() and not made.done() and not other.done()
        ctx.end()
        await draining
        await owner.start()
        assert (await other)[1] == {"ps0": 2}
        assert await (await made).add() == 1


async def test_a_pass_that_takes_too_long_is_lost_and_says_so(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 2, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    before = bits(await net.state_dict())
    async with ps.context() as ctx:
        loss = (await net(torch.ones(1, 4))).sum()
        kept, result = await net.remote("forward", torch.ones(1, 4)), net(torch.ones(1, 4))
        await ps.call(torch.add, result, 1)
        await ctx.backward(loss, retain_graph=True)
        await owner.restart(drain_seconds=0.05)
        works: list[Callable[[], Any]] = [
            *(lambda: opt.step(ctx), lambda: net(torch.ones(1, 4)), lambda: ctx.backward(loss)),
            # Their values are still there, but not what they were computed from.
            *(kept.to_here, lambda: result, lambda: ps.call(torch.add, result, 1)),
        ]
        for again in works:
            with pytest.raises(tc.errors.ContextLostError, match="run forward again"):
                await again()
    assert bits(await net.state_dict()) == before, "no step was applied"
    assert (await step(ps, opt, net, torch.ones(1, 4)))[1] == {"ps0": 1}
    await until(ps, lambda status: status.contexts == 0)
    assert owner.server.engine.contexts.over()[ctx.id.trainer][1] == set(), "it was ended after all"


async def test_an_interrupted_request_says_that_its_outcome_is_unknown(owner: Owner, ps: tc.Client) -> None:
    gate = await ps.create(GATE, name="gate")
    hosted = owner.server.engine.registry.named("gate").value
    waiting = gate.wait()
    await gate.wait_for(1)
    draining = asyncio.create_task(owner.server.drain(0.05))
    with pytest.raises(tc.errors.SessionLostError, match="'ps0' stopped while this request ran"):
        await waiting
    hosted._open.set()
    await draining
    await owner.start()
    assert (await ps.status()).serving


async def test_waits_in_the_directory_continue(owner: Owner, ps: tc.Client) -> None:
    async with tc.connect(owner.address) as other:

        def ask(client: tc.Client, **request: Any) -> Any:
            return client.session("ps0").submit(Request(**request), None, lambda reply, _: reply)

        await ask(ps, register=RegisterRequest(name="anna", address="here:1", is_owner=True))
        looking = ask(ps, lookup=LookupRequest(name="bert", wait_seconds=30))
        both = ["anna", "bert"]
        meeting = ask(ps, rendezvous=RendezvousRequest(key="x", name="anna", names=both, wait_seconds=30))
        await until(ps, lambda status: status.waiting == 2)
        await owner.restart(drain_seconds=0.5)
        kept = [(entry.name, entry.is_owner) for entry in owner.server.engine.directory.members()]
        assert kept == [("anna", True)]
        await ask(other, register=RegisterRequest(name="bert", address="there:2"))
        assert (await looking).lookup.member.address == "there:2"
        met = ask(other, rendezvous=RendezvousRequest(key="x", name="bert", names=both, wait_seconds=30))
        assert [list((await each).rendezvous.missing) for each in (meeting, met)] == [[], []]


async def test_passes_over_two_owners_go_on_while_both_restart(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        both = await owners(stack, tmp_path, "ps0", "ps1")
        told: Told[dict[str, int]] = Told()

        async def train() -> None:
            async with tc.connect(*(owner.address for owner in both)) as ps:
                parts = [await ps.module(AFFINE, 3, 3, name=owner.name, owner=owner.name) for owner in both]
                opt = await ps.optimizer(optim.SGD, [p for part in parts for p in part.parameters()], lr=0.01)
                for _ in range(40):
                    async with ps.context() as ctx:
                        loss = (await parts[1](await parts[0](torch.ones(2, 3)))).square().mean()
                        await ctx.backward(loss)
                        told.add(await opt.step(ctx))

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(train())
            for owner, so_far in zip([*both, *both], (10, 25, 40, 55), strict=True):
                await told.reached(so_far)
                await owner.restart()
        for owner in both:
            assert sorted(versions[owner.name] for versions in told.items) == list(range(1, 81))


async def test_after_a_crash_it_continues_from_its_last_checkpoint_and_old_sessions_are_lost(
    owner: Owner, ps: tc.Client
) -> None:
    net = await ps.module("torch.nn.Linear", 4, 2, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    await step(ps, opt, net, torch.ones(1, 4))
    await owner.restart()
    kept = bits(await net.state_dict())
    await step(ps, opt, net, torch.ones(1, 4))
    await owner.crash()
    with pytest.raises(tc.errors.SessionLostError, match="it has restarted"):
        await ps.attach("net")
    again = await ps.module("torch.nn.Linear", 4, 2, name="net")
    assert bits(await again.state_dict()) == kept


async def test_a_step_of_a_pass_that_a_crash_took_away_is_not_taken_for_done(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 2, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    await owner.restart()
    async with ps.context() as ctx:
        await ctx.backward((await net(torch.ones(1, 4))).sum())
        await owner.crash()
        with pytest.raises(tc.errors.SessionLostError):
            await ps.attach("net")
        with pytest.raises(tc.errors.StaleHandleError, match="has lost its state since then"):
            await opt.step(ctx)
        with pytest.raises(tc.errors.ContextLostError, match="'ps0' has lost its part"):
            await ctx.backward(torch.ones(1, requires_grad=True).sum())


async def test_a_trainer_that_was_idle_during_a_crash_learns_of_it_too(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 2, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    await step(ps, opt, net, torch.ones(1, 4))
    await owner.restart()
    await step(ps, opt, net, torch.ones(1, 4))
    session = ps.session("ps0")
    await owner.crash()
    while not session.restarts:
        with suppress(tc.errors.SessionLostError):
            await ps.status()
    assert opt.remotes["ps0"].handle.ref.object_id in owner.server.engine.registry._objects, "it is there again"
    called = r"ps\.(module\('torch.*Linear', …, name='net'|optimizer\()"
    for use in (lambda: net(torch.ones(1, 4)), net.state_dict, opt.state_dict, lambda: opt.set_options(0, lr=1.0)):
        with pytest.raises(
            tc.errors.StaleHandleError, match=rf"'ps0' has restarted since .* at the beginning: {called}"
        ):
            await use()
    net = await ps.module("torch.nn.Linear", 4, 2, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    assert (await step(ps, opt, net, torch.ones(1, 4)))[1] == {"ps0": 2}
