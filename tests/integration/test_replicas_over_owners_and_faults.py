"""Tests that one push to several owners counts once wherever a stream breaks, and that no gradient is lost silently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.requests.administration import evict_session
from ps_service.rpc.servicer import Servicer
from ps_wire.compression.choice import Choice
from tests.integration import support
from tests.integration.breaking import for_each, same_wherever_it_breaks
from tests.integration.replicas_over_owners import Pusher, batches, begun, learn, local, same_everywhere
from tests.integration.restarting import Owner
from tests.integration.spanning import held, hosted
from tests.integration.support import AFFINE, bits, until
from tests.waiting import until as waiting_until
from trainer_client.replicas.replica import Replicas
from trainer_client.transport.faulty import Fault, FaultyConnector, Plan
from trainer_client.transport.in_process import MemoryConnector

CASES: dict[str, tc.policies.Policy] = {
    "plain": tc.policies.Async(),
    "sync": tc.policies.Sync(2, "sum"),
    "bounded": tc.policies.BoundedStaleness(0),
}


class Both(nn.Module):
    """The sum of two modules, whose gradients do not depend on the parameters."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.first(x) + 2 * self.second(x)
        return found


async def job(policy: tc.policies.Policy, plan: Plan) -> list[Any]:
    """Two trainers push to two owners; the state in the end.

    The plan breaks a stream between the first trainer and an owner. Sums are exact in every order.
    """
    async with AsyncExitStack() as stack:
        connectors = []
        for name in ("ps0", "ps1"):
            owner = support.engine(name)
            stack.push_async_callback(asyncio.to_thread, owner.close)
            servicer = Servicer(owner)
            stack.callback(servicer.close)
            connectors.append(servicer)
        parts: list[tuple[Replicas, tc.DistributedOptimizer]] = []
        for number in range(2):
            lines: list[Any] = [MemoryConnector(servicer.serve) for servicer in connectors]
            if number == 0:
                lines = [FaultyConnector(line, plan) for line in lines]
            client = await stack.enter_async_context(tc.connect(*lines))
            nets = [await client.module(AFFINE, 3, 2, name=f"net{n}", seed=0, owner=n) for n in ("ps0", "ps1")]
            opt = await client.optimizer(
                optim.SGD, [each for net in nets for each in net.parameters()], lr=0.5, momentum=0.5, policy=policy
            )
            codec = Choice(tc.codecs.TopK(0.5), min_numel=0)
            parts.append((client.replicas(Both(*[await net.replica(compress=codec) for net in nets])), opt))
        for step in range(2):
            for model, _ in parts:
                model(torch.full((2, 3), step + 1.0)).sum().backward()
            await asyncio.gather(*(model.push(opt, pull=step > 0) for model, opt in parts))
        expected = 2 if isinstance(policy, tc.policies.Sync) else 4
        for name in ("ps0", "ps1"):
            await until(client, lambda status: status.optimizers[0].version == expected, name)
        for model, _ in parts:
            await model.pull()
        states = [bits(model.state_dict()) for model, _ in parts]
        assert states[0] == states[1]
        return bits([states[0], [await net.state_dict() for net in nets], await opt.state_dict()])


@for_each(CASES)
async def test_a_push_counts_once_on_every_owner_wherever_the_stream_breaks(
    policy: tc.policies.Policy, fault: Fault
) -> None:
    # The owner that decides gets the step, and the other one what it is to hold and what was decided.
    kinds = ["step", "hold", "settle"]
    if policy == CASES["plain"]:
        kinds += ["add_gradients", "pull"]  # the same with every policy
    await same_wherever_it_breaks(lambda plan: job(policy, plan), fault, kinds=kinds)


@pytest.fixture
async def places(tmp_path: Path) -> AsyncIterator[list[Owner]]:
    async with Owner(tmp_path / "0", "ps0") as first, Owner(tmp_path / "1", "ps1") as second:
        yield [first, second]


async def pusher(stack: AsyncExitStack, places: list[Owner], policy: tc.policies.Policy | None) -> Pusher:
    client = await stack.enter_async_context(tc.connect(*(each.address for each in places)))
    return await begun(client, ["ps0", "ps1"], policy)


@pytest.mark.parametrize(
    ("policy", "restarted"),
    [(None, (0, 1)), (tc.policies.Sync(1), (0,)), (tc.policies.Sync(1), (1,))],
    ids=["none-both", "sync-first", "sync-second"],
)
async def test_pushes_go_on_after_owners_have_restarted(
    places: list[Owner], policy: tc.policies.Policy | None, restarted: tuple[int, ...]
) -> None:
    async with AsyncExitStack() as stack:
        one = await pusher(stack, places, policy)
        net, opt = local(one)
        for x in batches(2):
            assert await one.step(x) is not None
            learn(net, opt, x)
            await same_everywhere(one, net)
            for place in restarted:
                await places[place].restart()
        assert await one.model.pull() == 2 * len(restarted)


def between_adding_and_holding(one: Pusher, act: Callable[[], Any]) -> None:
    """Has something happen once all owners have the gradients, and before one of them knows that they are to count."""
    before = one.opt.step_pushed

    async def step_pushed(context: tc.Context, added: Any, *more: Any) -> Any:
        for requests in added.values():
            for each in requests:
                await each
        await act()
        return await before(context, added, *more)

    one.opt.step_pushed = step_pushed  # type: ignore[method-assign]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("policy", [None, tc.policies.Sync(1)], ids=str)
async def test_an_owner_that_loses_gradients_before_they_count_is_an_error_and_nothing_steps(
    places: list[Owner], policy: tc.policies.Policy | None, place: int
) -> None:
    async with AsyncExitStack() as stack:
        one = await pusher(stack, places, policy)
        other = places[1 - place]

        async def crash() -> None:
            await places[place].crash()
            await until(one.client, lambda status: True, places[place].name)

        between_adding_and_holding(one, crash)
        with pytest.raises((tc.errors.ContextLostError, tc.errors.SessionLostError, tc.errors.StaleHandleError)):
            await one.step(batches(1)[0])
        (optimizer,) = (await one.client.status(other.name)).optimizers
        assert optimizer.version == 0
        # What it held is freed.
        assert len(other.server.engine.contexts) == 0


async def evict(one: Pusher, owner: Owner) -> None:
    """Has an owner end the trainer's session; its objects stay."""
    evict_session(owner.server.engine, one.client.trainer.hex()[:8])
    session = one.client.sessions[owner.name]
    await waiting_until(lambda: session.losses == 1 and session.state == "connected")


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("policy", [None, tc.policies.Sync(1)], ids=str)
async def test_a_session_that_ends_before_its_gradients_count_is_an_error_and_nothing_steps(
    places: list[Owner], policy: tc.policies.Policy | None, place: int
) -> None:
    async with AsyncExitStack() as stack:
        one = await pusher(stack, places, policy)
        before_step = one.opt.step_pushed
        between_adding_and_holding(one, lambda: evict(one, places[place]))
        with pytest.raises((tc.errors.ContextLostError, tc.errors.SessionLostError)):
            await one.step(batches(1)[0])
        assert [hosted(each.server).version for each in places] == [0, 0]
        one.opt.step_pushed = before_step  # type: ignore[method-assign]
        net, opt = local(one)
        assert await one.step(batches(1)[0]) == {"ps0": 1, "ps1": 1}
        learn(net, opt, batches(1)[0])
        await same_everywhere(one, net)


async def test_a_session_that_ends_between_holding_and_the_offer_is_an_error_and_nothing_steps(
    places: list[Owner],
) -> None:
    async with AsyncExitStack() as stack:
        one = await pusher(stack, places, tc.policies.Sync(1))
        (follower,) = one.opt._rounds._followers.values()  # type: ignore[union-attr]
        before = follower.hold

        async def hold(*args: Any) -> int:
            applied = await before(*args)
            follower.hold = before  # type: ignore[method-assign]
            await evict(one, places[0])
            return applied

        follower.hold = hold  # type: ignore[assignment,method-assign]
        # The second, if the answer that the gradients are there was still under way when the session ended.
        with pytest.raises((tc.errors.ContextLostError, tc.errors.SessionLostError), match="'ps0'"):
            await one.step(batches(1)[0])
        assert [hosted(each.server).version for each in places] == [0, 0]
        await waiting_until(lambda: held(places[1].server) == 0)
        assert await one.step(batches(1)[0]) == {"ps0": 1, "ps1": 1}


async def test_a_trainer_that_dies_between_its_requests_blocks_and_splits_no_round(places: list[Owner]) -> None:
    async with AsyncExitStack() as stack:
        one, two = [await pusher(stack, places, tc.policies.Sync(2)) for _ in range(2)]
        net, opt = local(one)
        between_adding_and_holding(two, two.client.close)
        first = asyncio.create_task(one.step(batches(1)[0]))
        with pytest.raises(tc.PsError):
            await two.step(torch.ones(1, 3))
        found = await first
        assert found is not None and found.counted == 1 and found == {"ps0": 1, "ps1": 1}
        learn(net, opt, batches(1)[0])
        await same_everywhere(one, net)
        await waiting_until(lambda: not any(len(each.server.engine.contexts) for each in places))
