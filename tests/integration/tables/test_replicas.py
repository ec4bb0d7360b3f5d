"""Tests of replicas of modules that look up in tables: dense parameters local, look-ups remote, one step of all."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
import trainer_client.nn as layers
from ps_service import hosted
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from ps_wire.compression.choice import Choice
from tests.conftest import StartOwner
from tests.integration.support import bits
from tests.training import apart

ROWS, DIM = 40, 3


@hosted
class Scorer(nn.Module):
    """Dense layers over pooled rows. What looks up is an argument: on an owner there is none."""

    def __init__(self, lookup: nn.Module | None = None) -> None:
        super().__init__()
        self.lookup = lookup
        self.dense = nn.Sequential(nn.Linear(DIM, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        assert self.lookup is not None
        found: torch.Tensor = self.dense(self.lookup(ids, offsets))
        return found.square().mean()


def batches(count: int, seed: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randint(0, ROWS, (24,), generator=generator), torch.tensor([0, 3, 3, 10, 20])


def twin(model: Any, rows: torch.Tensor, mode: str) -> tuple[Scorer, list[torch.optim.Optimizer]]:
    """The same in local torch: one optimizer for the dense part, and one for the rows."""
    local = Scorer(nn.EmbeddingBag(ROWS, DIM, mode=mode))
    local.dense.load_state_dict(model.dense.state_dict())
    with torch.no_grad():
        local.lookup.weight.copy_(rows)  # type: ignore[union-attr,operator]
    dense = torch.optim.SGD(local.dense.parameters(), lr=0.1, momentum=0.9)
    return local, [dense, torch.optim.SGD(local.lookup.parameters(), lr=0.5)]  # type: ignore[union-attr]


def learn(local: nn.Module, opts: list[torch.optim.Optimizer], *batch: torch.Tensor) -> torch.Tensor:
    for opt in opts:
        opt.zero_grad()
    loss: torch.Tensor = local(*batch)
    loss.backward()
    for opt in opts:
        opt.step()
    return loss.detach()


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
async def test_one_step_of_tables_and_dense_parameters_is_that_of_local_torch(mode: str) -> None:
    async with Server(Engine("ps0", AllowList([sys.modules[__name__]]))) as server:
        await asyncio.to_thread(train_as_locally, server.address, mode)


def train_as_locally(address: str, mode: str) -> None:
    """A program of the blocking client."""
    with tc.connect(address) as ps:
        items = ps.table("items", DIM, tc.tables.SGD(lr=0.5), rows=ROWS, init=tc.tables.Normal(1.0))
        net = ps.module(Scorer, seed=1, name="scorer")
        replica = net.replica(lambda: Scorer(layers.EmbeddingBag(items, mode)))
        names = [f"dense.{name}" for name in ("0.weight", "0.bias", "2.weight", "2.bias")]
        assert [name for name, _ in replica.module.named_parameters()] == names
        opt = ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.1, momentum=0.9)
        everything = torch.arange(ROWS)
        local, opts = twin(replica.module, items(everything), mode)
        for step, batch in enumerate(batches(4)):
            with ps.context() as ctx:
                loss = replica(*batch)
                ctx.backward(loss)
                stepped = replica.push(opt, context=ctx)
            assert stepped == {"ps0": step + 1, "ps0/items": step + 1}
            torch.testing.assert_close(loss.detach(), learn(local, opts, *batch))
            assert all(each.grad is None for each in replica.parameters())
        torch.testing.assert_close(items(everything), local.lookup.weight.detach())  # type: ignore[union-attr,arg-type]
        for mine, theirs in zip(replica.module.dense.parameters(), local.dense.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
        assert all(torch.equal(value, replica.module.state_dict()[name]) for name, value in net.state_dict().items())


@pytest.fixture
async def addresses(start_owner: StartOwner) -> list[str]:
    return [(await start_owner(f"ps{number}")).address for number in range(2)]


class Trainer:
    """A trainer whose tables are on two owners, and whose dense layers are on both of them."""

    def __init__(self, ps: tc.Client, items: tc.Table, nets: list[tc.RemoteModule], model: tc.Replicas) -> None:
        self.ps, self.items, self.nets, self.model = ps, items, nets, model
        self.opt: Any = None

    async def step(self, batch: tuple[torch.Tensor, torch.Tensor], **more: Any) -> tc.Stepped | None:
        return await apart(self._step(batch, **more))

    async def _step(self, batch: tuple[torch.Tensor, torch.Tensor], **more: Any) -> tc.Stepped | None:
        async with self.ps.context() as ctx:
            loss = (await asyncio.to_thread(self.model, *batch)).square().mean()
            await ctx.backward(loss)
            return await self.model.push(self.opt, context=ctx, **more)


class Two(nn.Module):
    """A look-up and two dense layers."""

    def __init__(self, lookup: nn.Module, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.lookup, self.first, self.second = lookup, first, second

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(self.first(self.lookup(ids, offsets)).tanh())
        return found


async def trainer(ps: tc.Client, policy: tc.policies.Policy | None = None, **more: Any) -> Trainer:
    items = await ps.table("items", DIM, tc.tables.SGD(lr=0.5), rows=ROWS, init=tc.tables.Normal(1.0), policy=policy)
    nets = [await ps.module("torch.nn.Linear", DIM, DIM, name=f"net-{n}", seed=n, owner=f"ps{n}") for n in range(2)]
    model = ps.replicas(Two(layers.EmbeddingBag(items), *[await each.replica(**more) for each in nets]))
    made = Trainer(ps, items, nets, model)
    parameters = [each for net in nets for each in net.parameters()]
    dense = {"lr": 0.1, "momentum": 0.9}
    made.opt = await ps.optimizer(torch.optim.SGD, [items, *parameters], policy=policy, **dense)
    return made


def local_twin(one: Trainer, rows: torch.Tensor) -> tuple[Two, list[torch.optim.Optimizer]]:
    local = Two(nn.EmbeddingBag(ROWS, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM))
    with torch.no_grad():
        local.lookup.weight.copy_(rows)  # type: ignore[operator]
        for mine, theirs in zip(dense_of(local), one.model.parameters(), strict=True):
            mine.copy_(theirs)
    dense = torch.optim.SGD(dense_of(local), lr=0.1, momentum=0.9)
    return local, [dense, torch.optim.SGD(local.lookup.parameters(), lr=0.5)]


def dense_of(local: Two) -> list[nn.Parameter]:
    return [*local.first.parameters(), *local.second.parameters()]


async def same(one: Trainer, local: Two) -> None:
    torch.testing.assert_close(await one.items(torch.arange(ROWS)), local.lookup.weight.detach())  # type: ignore[arg-type]
    for mine, theirs in zip(one.model.parameters(), dense_of(local), strict=True):
        torch.testing.assert_close(mine, theirs)
    held = [value for each in one.nets for value in (await each.state_dict()).values()]
    assert all(torch.equal(*pair) for pair in zip(held, one.model.parameters(), strict=True))


def learn_two(local: Two, opts: list[torch.optim.Optimizer], *given: tuple[torch.Tensor, torch.Tensor]) -> None:
    for opt in opts:
        opt.zero_grad()
    for batch in given:
        (local(*batch).square().mean() / len(given)).backward()
    for opt in opts:
        opt.step()


async def test_replicas_and_tables_on_two_owners_step_as_one(addresses: list[str]) -> None:
    async with tc.connect(*addresses) as ps:
        one = await trainer(ps)
        local, opts = local_twin(one, await one.items(torch.arange(ROWS)))
        for batch in batches(3):
            assert len(await one.step(batch) or ()) == 4  # the dense part and the table on either owner
            learn_two(local, opts, batch)
            await same(one, local)


async def test_trainers_of_a_round_take_the_mean_of_rows_and_of_dense_gradients(addresses: list[str]) -> None:
    async with tc.connect(*addresses) as ps, tc.connect(*addresses) as other:
        group = [await trainer(ps, tc.policies.Sync(2)), await trainer(other, tc.policies.Sync(2))]
        local, opts = local_twin(group[0], await group[0].items(torch.arange(ROWS)))
        for seed in range(2):
            given = list(batches(2, seed))
            found = await asyncio.gather(*(each.step(batch) for each, batch in zip(group, given, strict=True)))
            assert [each.counted for each in found if each is not None] == [2, 2]
            learn_two(local, opts, *given)
            for each in group:
                await same(each, local)


@pytest.mark.parametrize("policy", [None, tc.policies.Async(), tc.policies.Sync(2)], ids=str)
async def test_values_are_counted_with_steps_of_tables(addresses: list[str], policy: tc.policies.Policy | None) -> None:
    async with tc.connect(*addresses) as ps, tc.connect(*addresses) as other:
        group = [await trainer(ps, policy), await trainer(other, policy)]
        given: list[dict[str, Any]] = [{"values": {"loss": 1.0 + n, "samples": 4}} for n in range(2)]
        found = await asyncio.gather(
            *(
                each.step(next(batches(1)), **more, reduce={"samples": "sum"})
                for each, more in zip(group, given, strict=True)
            )
        )
        reported = [each.reported for each in found if each is not None]
        together = {"loss": 1.5, "samples": 8}
        assert (
            reported == [together] * 2
            if isinstance(policy, tc.policies.Sync)
            else reported == [each["values"] for each in given]
        )
        so_far = await group[0].opt.parameters.values(reset=False)
        assert dict(so_far) == together and so_far.counts == {"loss": 2, "samples": 2}
        # The first owner refuses what does not fit, before any other has stepped.
        before = await group[0].items(torch.arange(ROWS)), [await each.state_dict() for each in group[0].nets]
        with pytest.raises(tc.errors.InvalidArgumentError, match="'loss' is a number"):
            await group[0].step(next(batches(1)), values={"loss": torch.ones(2)})
        after = await group[0].items(torch.arange(ROWS)), [await each.state_dict() for each in group[0].nets]
        assert bits(before) == bits(after)


async def test_values_of_a_pass_that_is_run_again_count_once(addresses: list[str]) -> None:
    async with tc.connect(*addresses) as ps:
        one, found = await trainer(ps), []

        async def step(ctx: tc.Context) -> None:
            await ctx.backward((await asyncio.to_thread(one.model, *next(batches(1)))).square().mean())
            found.append(await one.model.push(one.opt, context=ctx, values={"loss": 1.0}))
            if len(found) == 1:
                raise tc.errors.ContextLostError("as if an owner had lost it after the step")

        await ps.run(step)
        assert found[0] == found[1] == dict.fromkeys(("ps0", "ps1", "ps0/items", "ps1/items"), 1)
        assert (await one.opt.parameters.values()).counts == {"loss": 1}


async def test_a_gradient_that_is_refused_somewhere_steps_nothing(addresses: list[str]) -> None:
    async with tc.connect(*addresses) as ps:
        one = await trainer(ps)
        before = await one.items(torch.arange(ROWS)), [each.clone() for each in one.model.parameters()]
        with torch.no_grad():
            list(one.model.parameters())[2][0, 0] = float("nan")
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await one.step(next(batches(1)))
        await one.model.pull()
        assert torch.equal(await one.items(torch.arange(ROWS)), before[0])
        assert all(torch.equal(*pair) for pair in zip(one.model.parameters(), before[1], strict=True))


async def test_codecs_and_a_push_without_a_pull(addresses: list[str]) -> None:
    async with tc.connect(*addresses) as ps:
        one = await trainer(ps, compress=Choice(tc.codecs.TopK(0.5), min_numel=0))
        before = [each.clone() for each in one.model.parameters()]
        for batch in batches(2):
            await one.step(batch, pull=False)
            assert all(torch.equal(*pair) for pair in zip(one.model.parameters(), before, strict=True))
        assert await one.model.pull() == 4
        assert all(not torch.equal(*pair) for pair in zip(one.model.parameters(), before, strict=True))


async def test_hosted_modules_of_the_pass_step_with_it(addresses: list[str]) -> None:
    """A pass may also call modules on owners: their gradients are there already."""
    async with tc.connect(*addresses) as ps:
        head = await ps.module("torch.nn.Linear", DIM, 1, name="head", seed=3, owner="ps1")
        body = await ps.module("torch.nn.Linear", DIM, DIM, name="body", seed=4, owner="ps0")
        replica = await body.replica()
        opt = await ps.optimizer(torch.optim.SGD, [*body.parameters(), *head.parameters()], lr=0.1)
        local = nn.Sequential(nn.Linear(DIM, DIM), nn.Linear(DIM, 1))
        local[0].load_state_dict(await body.state_dict())
        local[1].load_state_dict(await head.state_dict())
        own = torch.optim.SGD(local.parameters(), lr=0.1)
        for _ in range(2):
            async with ps.context() as ctx:
                await ctx.backward((await head(replica(torch.ones(2, DIM)))).square().mean())
                assert await replica.push(opt, context=ctx, values={"loss": 1.0}) == {"ps0": _ + 1, "ps1": _ + 1}
            own.zero_grad()
            local(torch.ones(2, DIM)).square().mean().backward()
            own.step()
        for mine, theirs in zip(replica.parameters(), local[0].parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close((await head.state_dict())["weight"], local[1].weight.detach())


@pytest.fixture
async def prepared(addresses: list[str]) -> AsyncIterator[Trainer]:
    async with tc.connect(*addresses) as ps:
        yield await trainer(ps)


async def test_what_makes_no_sense_is_refused(prepared: Trainer, addresses: list[str]) -> None:
    one, batch = prepared, next(batches(1))
    with pytest.raises(tc.errors.InvalidArgumentError, match="context=ctx"):
        one.model.push(one.opt)
    replica = await one.nets[0].replica()
    with pytest.raises(tc.errors.InvalidArgumentError, match="context=ctx"):
        replica.push(one.opt)
    only = await one.ps.optimizer(None, [one.items])
    async with one.ps.context() as ctx:
        loss = (await asyncio.to_thread(one.model, *batch)).sum()
        running = ctx.backward(loss)
        with pytest.raises(tc.errors.InvalidArgumentError, match="has not ended"):
            one.model.push(one.opt, context=ctx)
        await running
        clipping = ctx.clip_grad_norm(list(one.model.parameters()), 0.01)
        with pytest.raises(tc.errors.InvalidArgumentError, match="has not ended"):
            one.model.push(one.opt, context=ctx)
        await clipping
        with pytest.raises(tc.errors.InvalidArgumentError, match="does not step all replicas"):
            one.model.push(only, context=ctx)
        with pytest.raises(tc.errors.InvalidArgumentError, match="has tables only"):
            only.step(ctx, values={"loss": 1.0})
    async with tc.connect(*addresses) as other, other.context() as ctx:
        with pytest.raises(tc.errors.InvalidArgumentError, match="different clients"):
            one.model.push(one.opt, context=ctx)
    with pytest.raises(tc.errors.ContextEndedError):
        one.model.push(one.opt, context=ctx)
