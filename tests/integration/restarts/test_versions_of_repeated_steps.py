"""A step that is repeated has the versions at which it counted, also if owners were killed or started again between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import torch
from torch import optim

import trainer_client as tc
from tests.integration.restarting import Owner
from tests.integration.spanning import Trainer, batches, begun
from tests.training import apart

NAMES = ("ps0", "ps1")
P = tc.policies
X, Y = batches(2)


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[list[Owner]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Owner(tmp_path / name, name, durability="always")) for name in NAMES]


@pytest.fixture
async def client(both: list[Owner]) -> AsyncIterator[tc.Client]:
    async with tc.connect(*(each.address for each in both)) as client:
        yield client


async def kill(owners: list[Owner], how: str) -> None:
    for each in owners if how else ():
        if how == "checkpoint":
            await asyncio.to_thread(each.server.engine.checkpoints.write)
        await each.crash()


async def repeated(
    trainer: Trainer, owners: list[Owner], how: str, loss: Callable[[torch.Tensor], Awaitable[torch.Tensor]]
) -> list[tc.Stepped]:
    """What a step is told in each of two attempts, between which others are made."""
    told: list[tc.Stepped] = []

    async def step(ctx: tc.Context) -> None:
        await ctx.backward(await loss(X))
        told.append(await trainer.opt.step(ctx))
        if len(told) == 1:
            for _ in range(2):
                await apart(other())
            await kill(owners, how)
            raise tc.errors.ContextLostError("as if an owner had lost it")

    async def other() -> None:
        async with trainer.client.context() as ctx:
            await ctx.backward(await loss(Y))
            await trainer.opt.step(ctx)

    await trainer.client.run(step)
    return told


@pytest.mark.parametrize("how", ["", "killed", "checkpoint"])
@pytest.mark.parametrize("policy", [None, P.Async()], ids=["plain", "rounds"])
async def test_of_an_optimizer_over_owners(
    both: list[Owner], client: tc.Client, policy: P.Policy | None, how: str
) -> None:
    trainer = await begun(client, NAMES, policy)
    first, again = await repeated(trainer, both, how, trainer.loss)
    assert first == {"ps0": 1, "ps1": 1} and not first.repeated
    # One that follows does not know what it has made before its checkpoint.
    assert again == {"ps0": 1, "ps1": 3 if policy is not None and how == "checkpoint" else 1}
    assert again.repeated
    assert await trainer.step(Y) == {"ps0": 4, "ps1": 4}


@pytest.mark.parametrize("policy", [None, P.Sync(1), P.Quorum(2)], ids=repr)
async def test_of_an_optimizer_of_one_owner(both: list[Owner], client: tc.Client, policy: P.Policy | None) -> None:
    trainer = await begun(client, NAMES[:1], policy)
    first, again = await repeated(trainer, both[:1], "killed", trainer.loss)
    assert first == {"ps0": 0 if policy == P.Quorum(2) else 1}
    assert again == {"ps0": 1} and again.repeated


async def test_of_optimizers_that_step_together(both: list[Owner], client: tc.Client) -> None:
    trainer = await begun(client, NAMES[:1], None)
    rows = await client.table("rows", 3, tc.tables.SGD(lr=0.1), owners=NAMES[:1])
    opt = await client.optimizer(optim.SGD, [*trainer.nets[0].parameters(), rows], lr=0.1, momentum=0.9)

    async def loss(x: torch.Tensor) -> torch.Tensor:
        return (await trainer.nets[0](x)).square().mean() + (await rows(torch.tensor([1, 2]))).sum()

    first, again = await repeated(trainer._replace(opt=opt), both[:1], "killed", loss)
    assert again == first == {"ps0": 1, "ps0/rows": 1}
