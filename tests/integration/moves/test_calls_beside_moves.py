"""Tests of calls that a trainer makes while an earlier one, whose result they need, waits to be sent again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from tests.integration.restarting import Owner
from tests.waiting import until
from trainer_client.session import moves


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations of requests that are sent again, after a while."""
    original, seen = moves.Moves.redirect, list[str]()

    def redirect(its: moves.Moves, in_flight: Any, error: Any) -> bool:
        seen.append(in_flight.operation)
        return original(its, in_flight, error)

    monkeypatch.setattr(moves.Moves, "redirect", redirect)
    monkeypatch.setattr(moves, "_AGAIN_SECONDS", 0.05)
    return seen


@pytest.mark.parametrize("together", [False, True], ids=["one is closed", "all are"])
async def test_a_call_is_made_while_the_one_that_it_follows_waits(
    tmp_path: Path, refused: list[str], together: bool
) -> None:
    async with AsyncExitStack() as stack:
        owners = [
            await stack.enter_async_context(Owner(tmp_path / name, name, durability="interval:1"))
            for name in ("ps0", "ps1")
        ]
        ps, mover = [await stack.enter_async_context(tc.connect(*[each.address for each in owners])) for _ in range(2)]
        enc = await ps.module(nn.Linear, 4, 3, name="enc", seed=1)
        heads = [await ps.module(nn.BatchNorm1d, 3, name=f"head{number}") for number in range(3)]
        if together:
            params = [each for module in (enc, *heads) for each in module.parameters()]
            await ps.optimizer(torch.optim.SGD, params, lr=0.1, name="opt")
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
        async with ps.context() as ctx:
            loss = (await enc(x)).sum()  # holds the move up, which closes and reopens what moves

            async def move() -> None:
                await mover.move("enc", to="ps1", pause=0.3)

            async def calls() -> list[Any]:
                while not refused:
                    hidden = enc(x)
                    first = heads[0](hidden)
                    await until(lambda made=first: bool(refused) or made.settled)
                await asyncio.sleep(0.01)
                second = heads[1](hidden)
                await asyncio.sleep(0.01)
                third = heads[2](hidden)
                return [await first, await second, await third]

            loop = asyncio.get_running_loop()
            moving = loop.create_task(move(), context=Context())
            results = await asyncio.wait_for(loop.create_task(calls(), context=Context()), 60.0)
            await ctx.backward(loss)
        await moving
        assert all(torch.equal(each, results[0]) for each in results)
        counts = [int((await each.state_dict())["num_batches_tracked"]) for each in heads]
        assert counts[1:] == [1, 1], "each has run once"
        assert await enc(x) is not None and enc.owner == "ps1"
