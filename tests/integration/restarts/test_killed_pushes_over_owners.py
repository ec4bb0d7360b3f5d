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
from tests.integration.spanning import hosted
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
