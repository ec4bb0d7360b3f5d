"""Pushes of replicas over several owners, of which one is killed: each counts on all or on none, and is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import trainer_client as tc
from tests.integration.replicas_over_owners import Pusher, batches, begun
from tests.integration.restarting import Owner
from tests.integration.spanning import held, hosted
from tests.integration.support import bits
from tests.waiting import until
from trainer_client.session.requests import Requests

NAMES = ("ps0", "ps1")
P = tc.policies
X, Y, Z = batches(3)


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[list[Owner]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Owner(tmp_path / name, name, durability="always")) for name in NAMES]


@pytest.fixture
async def client(both: list[Owner]) -> AsyncIterator[tc.Client]:
    async with tc.connect(*(each.address for each in both)) as client:
        yield client


async def pushed(pusher: Pusher, x: Any = X) -> tc.Stepped:
    stepped = await pusher.step(x)
    assert stepped is not None
    return stepped


async def test_a_push_does_not_wait_for_what_a_killed_owner_has_answered(
    both: list[Owner], client: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients have come, and what follows them has not."""
    pusher = await begun(client, NAMES, P.Async())
    with monkeypatch.context() as patch:
        send, lost = Requests._send, list[Any]()

        def lose(self: Requests, in_flight: Any, at_once: bool = False) -> None:
            if in_flight.operation == "hold":
                lost.append((self, in_flight))
            else:
                send(self, in_flight, at_once)

        patch.setattr(Requests, "_send", lose)
        push = asyncio.create_task(pushed(pusher))
        await until(lambda: lost and [*lost[0][0].window.unanswered.values()] == [lost[0][1]])
    await both[1].crash()
    with pytest.raises(tc.errors.ContextLostError):
        await push
    assert dict(await pushed(pusher)) == {"ps0": 1, "ps1": 1}
    assert [hosted(each.server).version for each in both] == [1, 1]


@pytest.mark.parametrize(
    ("policy", "checkpoint"),
    [(P.Async(), False), (P.BoundedStaleness(2), True), (P.Quorum(2), False), (P.Quorum(2), True)],
    ids=lambda each: getattr(each, "kind", each),
)
async def test_a_push_that_counted_before_its_answer_was_lost_is_answered(
    both: list[Owner], client: tc.Client, monkeypatch: pytest.MonkeyPatch, policy: P.Policy, checkpoint: bool
) -> None:
    pusher = await begun(client, NAMES, policy)
    await unanswered(both[0], pusher, monkeypatch, pushed(pusher), checkpoint)
    assert dict(await pushed(pusher)) == dict.fromkeys(NAMES, 1 if policy.kind == "quorum" else 2)
    await until(lambda: held(both[1].server) == 0)
    found = [await each.state_dict() for each in pusher.nets]
    for each in both:
        await each.crash()
    assert bits([await each.state_dict() for each in pusher.nets]) == bits(found)


async def unanswered(
    owner: Owner, pusher: Pusher, monkeypatch: pytest.MonkeyPatch, work: Any, checkpoint: bool
) -> tc.Stepped:
    """The result of a step or a push that has counted when the owner that decides is killed, and has no answer."""
    with monkeypatch.context() as patch:
        patch.setattr("ps_service.training.waiting_offers.WaitingOffers.answer", lambda *_: None)
        task = asyncio.create_task(work)
        rounds = hosted(owner.server).aggregator
        await until(lambda: rounds.journal is not None and rounds.journal.settled.clocks[pusher.client.trainer] == 1)
        if checkpoint:
            await asyncio.to_thread(owner.server.engine.checkpoints.write)
        await owner.server.stop()
    await owner.start()
    stepped: tc.Stepped = await task
    return stepped


@pytest.mark.parametrize("names", [NAMES, NAMES[:1]], ids=len)
async def test_a_step_that_counted_before_its_answer_was_lost_is_answered_without_a_run(
    both: list[Owner], client: tc.Client, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    pusher = await begun(client, names, P.BoundedStaleness(2))

    async def step() -> tc.Stepped:
        async with client.context() as ctx:
            for net in pusher.nets:
                await ctx.backward((await net(X)).square().mean())
            return await pusher.opt.step(ctx)

    stepped = await unanswered(both[0], pusher, monkeypatch, step(), checkpoint=False)
    assert dict(stepped) == dict.fromkeys(names, 1) and not stepped.repeated and not stepped.dropped
    assert dict(await step()) == dict.fromkeys(names, 2)
