"""Tests of rounds over several owners whose step the owner that decides refuses: the others do not make it either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer_client as tc
from tests.integration.restarting import Owner
from tests.integration.spanning import Trainer, batches, begun, held, local, same_nets
from tests.training import apart
from tests.waiting import until

NAMES = ["ps0", "ps1"]
LOGS = pytest.mark.parametrize("options", [{}, {"durability": "always"}], ids=["without a log", "with logs"])


@asynccontextmanager
async def trainers(
    folder: Path, policy: tc.policies.Policy, options: dict[str, Any]
) -> AsyncIterator[tuple[list[Owner], list[Trainer]]]:
    """Two owners, which may have logs, and two trainers of a layer on each of them."""
    async with AsyncExitStack() as stack:
        places = [await stack.enter_async_context(Owner(folder / name, name, **options)) for name in NAMES]
        made = []
        for _ in range(2):
            client = await stack.enter_async_context(tc.connect(*(each.address for each in places)))
            made.append(await begun(client, NAMES, policy, non_finite="refuse"))
        yield places, made


async def huge(trainer: Trainer) -> tc.Stepped:
    """A step of finite gradients; the sum of two is infinite on the first owner, and finite on the other."""
    async with trainer.client.context() as ctx:
        first, second = trainer.nets
        outputs = await first(torch.full((1, 3), 3e38)), await second(torch.ones(1, 3))
        await ctx.backward(torch.stack(outputs).sum())
        return await trainer.opt.step(ctx)


@LOGS
async def test_a_round_that_the_first_owner_refuses_is_made_on_no_owner(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    async with trainers(tmp_path, tc.policies.Sync(2, "sum"), options) as (places, group):
        net, opt = await local(group[0])
        errors = await asyncio.gather(*(apart(huge(each)) for each in group), return_exceptions=True)
        assert [type(each) for each in errors] == [tc.errors.NonFiniteGradientError] * 2
        await until(lambda: held(places[1].server) == 0)
        await same_nets(group[0], net)
        steps = [apart(each.step(x)) for each, x in zip(group, batches(2), strict=True)]
        assert [each.counted for each in await asyncio.gather(*steps)] == [2, 2]
        for x in batches(2):
            net(x).square().mean().backward()
        opt.step()
        await same_nets(group[0], net)
        assert held(places[1].server) == 0


@LOGS
async def test_an_open_round_that_the_first_owner_refuses_is_dropped_on_all_owners(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    async with trainers(tmp_path, tc.policies.Quorum(2, reduce="sum"), options) as (places, group):
        net, opt = await local(group[0])
        await apart(huge(group[0]))
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await apart(huge(group[1]))
        await until(lambda: held(places[1].server) == 0)
        await same_nets(group[0], net)
        for each in places if options else ():
            await each.crash()
        counted = [(await apart(each.step(x))).counted for each, x in zip(group, batches(2), strict=True)]
        assert counted == [0, 2]
        for x in batches(2):
            net(x).square().mean().backward()
        opt.step()
        await same_nets(group[0], net)
        assert held(places[1].server) == 0
