"""Tests of pushes that are cancelled or run out of time: which gradients count, and what residuals hold afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import optim

import trainer_client as tc
from ps_service.server import Server
from ps_wire.compression.choice import Choice
from ps_wire.compression.codec import Codec
from tests.integration.replica_models import Wide
from tests.integration.replicas_over_owners import Pusher, pushers
from tests.integration.spanning import hosted
from tests.integration.test_replicas import joined
from tests.training import hosted_value
from tests.waiting import until
from trainer_client.replicas.exchange import Exchange


class Trainer(NamedTuple):
    client: tc.Client
    net: tc.RemoteModule
    opt: tc.DistributedOptimizer
    replica: tc.Replica

    def push(self, gradient: float) -> tc.Pending[Any]:
        return give(self.replica, gradient).push(self.opt)


def give(model: Any, gradient: float) -> Any:
    """Sets every gradient to values near a number, none of them equal."""
    for each in model.parameters():
        each.grad = gradient * torch.linspace(1, 1.5, each.numel()).view_as(each)
    return model


@asynccontextmanager
async def trainers(**more: Any) -> AsyncIterator[tuple[Server, Trainer, Trainer]]:
    """Two trainers whose gradients are added up in rounds. The options are those of the first one's replica."""
    async with joined(2) as (server, clients):
        made = []
        for client in clients:
            net = await client.module(Wide, 8, 1, name="net", seed=1)
            opt = await client.optimizer(optim.SGD, net.parameters(), lr=1.0, policy=tc.policies.Sync(2, "sum"))
            made.append(Trainer(client, net, opt, await net.replica(**more if not made else {})))
        yield server, made[0], made[1]


def expire(server: Server) -> None:
    """The time of the offers of a policy runs out."""
    aggregator = hosted(server).aggregator
    for key in [*aggregator._offered]:
        aggregator.expire(key, 1.0)


def offered(server: Server) -> Callable[[], bool]:
    return lambda: len(hosted(server).aggregator._offered) == 1


def first_bias(server: Server, one: Trainer) -> float:
    return hosted_value(server, one.net).layers[0].bias[0].item()


def changed(server: Server, one: Trainer, before: float) -> float:
    """What steps have taken from the first bias."""
    return before - first_bias(server, one)


async def end(pending: tc.Pending[Any], how: str, server: Server) -> None:
    """Has a push that waits for other trainers fail."""
    if how == "deadline":
        expire(server)
        with pytest.raises(tc.errors.DeadlineExceededError):
            await pending
    elif how == "cancel":
        pending.cancel()
        with pytest.raises(tc.errors.CancelledCallError):
            await pending
    else:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pending_task(pending), 0.01)


async def pending_task(pending: tc.Pending[Any]) -> Any:
    return await pending


@pytest.mark.parametrize("how", ["cancel", "wait_for"])
async def test_cancelling_an_overlapping_push_leaves_the_one_before(how: str) -> None:
    async with trainers(overlap=1) as (server, one, two):
        start = first_bias(server, one)
        assert await one.push(1.0) is None
        await until(offered(server))
        await end(one.push(2.0), how, server)
        assert (await two.push(16.0)).counted == 2
        (outcome,) = await one.replica.finish()
        assert outcome == {"ps0": 1} and outcome.counted == 2  # type: ignore[union-attr]
        assert changed(server, one, start) == pytest.approx(17.0)
        # The next pushes go on in their order.
        assert await one.push(4.0) is None
        last = one.push(8.0)
        assert [(await two.push(32.0)).counted, (await two.push(32.0)).counted] == [2, 2]
        assert await last == {"ps0": 2} and await one.replica.finish() == [{"ps0": 3}]


async def test_cancelling_the_wait_for_the_last_pushes_cancels_none() -> None:
    async with trainers(overlap=2) as (server, one, two):
        for _ in range(2):
            assert await one.push(1.0) is None
        await until(offered(server))
        await end(one.replica.finish(), "cancel", server)
        for _ in range(2):
            assert (await two.push(1.0)).counted == 2
        assert await one.replica.finish() == [{"ps0": 1}, {"ps0": 2}]


CODECS: list[Codec] = [tc.codecs.TopK(0.25), tc.codecs.Sign(), tc.codecs.PowerSGD(1)]


def kept(replica: tc.Replica) -> dict[str, Any]:
    return kept_of(replica.exchange)


def kept_of(exchange: Exchange) -> dict[str, Any]:
    feedback = exchange._feedback
    assert feedback is not None
    return feedback.state_dict()


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Residuals are zero where they are missing."""
    for name in {**found["residuals"], **expected["residuals"]}:
        pair = [each["residuals"].get(name, torch.zeros(())) for each in (found, expected)]
        torch.testing.assert_close(*torch.broadcast_tensors(*pair), rtol=0, atol=1e-5)


async def counted_round(one: Trainer, two: Trainer) -> None:
    found = await asyncio.gather(*(pending_task(each.push(1.0)) for each in (one, two)))
    assert [each.counted for each in found] == [2, 2]


@pytest.mark.parametrize(
    ("codec", "how", "first"),
    [
        (codec, how, (number + turn) % 2 == 0)
        for number, codec in enumerate(CODECS)
        for turn, how in enumerate(("cancel", "wait_for", "deadline"))
    ],
    ids=repr,
)
async def test_a_push_that_does_not_count_leaves_residuals_as_before(codec: Codec, how: str, first: bool) -> None:
    async with trainers(compress=Choice(codec, min_numel=0)) as (server, one, two):
        if not first:
            await counted_round(one, two)
        before = kept(one.replica)
        lost = one.push(9.0)
        await until(offered(server))
        await end(lost, how, server)
        assert str(kept(one.replica)) == str(before)
        await until(lambda: not hosted(server).aggregator._offered)
        await counted_round(one, two)


@pytest.mark.parametrize("zero_grad", [True, False])
async def test_an_earlier_push_leaves_only_the_residual_of_the_later_one(zero_grad: bool) -> None:
    more = {"compress": Choice(tc.codecs.TopK(0.25), min_numel=0)}
    async with trainers(**more) as (server, one, two), trainers(**more) as (apart, other, another):
        for each in ((one, two), (other, another)):
            await counted_round(*each)
        lost = give(one.replica, 9.0).push(one.opt, zero_grad=zero_grad)
        later = one.push(2.0)
        # The other trainer's push comes on a connection of its own, and must not meet the one that is cancelled.
        offers = hosted(server).aggregator._offered
        await until(lambda: len(offers) == 1)
        (first,) = offers
        lost.cancel()
        await until(lambda: len(offers) == 1 and first not in offers)
        expected = other.push(2.0)
        assert (await two.push(1.0)).counted == (await another.push(1.0)).counted == 2
        assert await later == await expected == {"ps0": 2}
        # The later message may have sent something of the earlier gradient, which the residual lacks then.
        feedback, simple = kept(one.replica), kept(other.replica)
        for name, parameter in hosted_value(server, one.net).named_parameters():
            mine = parameter.detach() - feedback["residuals"][name]
            theirs = hosted_value(apart, other.net).get_parameter(name).detach() - simple["residuals"][name]
            torch.testing.assert_close(mine, theirs)


async def test_a_push_that_waits_for_its_turn_leaves_residuals_as_before() -> None:
    async with trainers(compress=Choice(tc.codecs.TopK(0.25), min_numel=0), overlap=1) as (server, one, two):
        assert await one.push(1.0) is None
        before = kept(one.replica)
        await until(offered(server))
        await end(one.push(2.0), "cancel", server)
        assert str(kept(one.replica)) == str(before)
        assert (await two.push(1.0)).counted == 2
        assert await one.replica.finish() == [{"ps0": 1}]


async def test_pushes_that_fail_one_after_the_other_leave_residuals_as_before() -> None:
    async with trainers(compress=Choice(tc.codecs.TopK(0.25), min_numel=0)) as (_, one, two):
        await counted_round(one, two)
        before = kept(one.replica)
        lost = [one.push(value) for value in (3.0, 5.0, 7.0)]
        for each in (lost[0], lost[2], lost[1]):
            each.cancel()
        same(kept(one.replica), before)


async def test_local_steps_whose_push_is_cancelled_send_the_whole_difference_next() -> None:
    async with trainers(compress=Choice(tc.codecs.TopK(0.25), min_numel=0)) as (server, one, two):
        inner = optim.SGD(one.replica.parameters(), lr=0.1)
        steps = one.replica.local_steps(inner, one.opt, every=1)
        give(one.replica, 1.0)
        lost = steps.step()
        await until(offered(server))
        await end(lost, "cancel", server)
        assert not kept(one.replica)["residuals"]
        again = steps.push()
        assert (await two.push(1.0)).counted == 2 and await again == {"ps0": 1}


def all_kept(one: Pusher) -> list[dict[str, Any]]:
    return [kept_of(each) for each in one.model._exchanges]


@pytest.mark.parametrize(
    ("places", "how"),
    [*((("ps0", "ps1"), how) for how in ("cancel", "wait_for", "deadline")), (("ps0", "ps0"), "cancel")],
)
async def test_a_push_of_several_replicas_leaves_residuals_as_before(places: tuple[str, str], how: str) -> None:
    more: Any = {"compress": Choice(tc.codecs.TopK(0.3), min_numel=0)}
    async with pushers(2, tc.policies.Sync(2, "sum"), places, **more) as (servers, (one, two)):
        found = await asyncio.gather(*(pending_task(give(each.model, 1.0).push(each.opt)) for each in (one, two)))
        assert [each.counted for each in found] == [2, 2]
        before = all_kept(one)
        lost = give(one.model, 9.0).push(one.opt)
        await until(offered(servers[0]))
        await end(lost, how, servers[0])
        # At once, because the program may encode its next gradients now.
        assert str(all_kept(one)) == str(before)
        await until(lambda: not hosted(servers[0]).aggregator._offered)
        found = await asyncio.gather(*(pending_task(give(each.model, 1.0).push(each.opt)) for each in (one, two)))
        assert [each.counted for each in found] == [2, 2]


async def test_cancelling_an_overlapping_push_of_several_replicas_leaves_the_one_before() -> None:
    more: Any = {"compress": Choice(tc.codecs.TopK(0.3), min_numel=0), "overlap": 1}
    async with pushers(2, tc.policies.Sync(2, "sum"), **more) as (servers, (one, two)):
        assert await give(one.model, 1.0).push(one.opt) is None
        before = all_kept(one)
        await until(offered(servers[0]))
        await end(give(one.model, 2.0).push(one.opt), "cancel", servers[0])
        assert str(all_kept(one)) == str(before)
        assert await give(two.model, 1.0).push(two.opt) is None
        for each in (one, two):
            (outcome,) = await each.model.finish()
            assert outcome is not None and outcome.counted == 2
        # The gradients that were sent ahead are freed.
        await until(lambda: all(len(server.engine.contexts) == 0 for server in servers))
