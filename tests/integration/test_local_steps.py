"""Tests of local steps (LocalSGD, DiLoCo) with real owners, held to the algorithms written out in plain torch."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.server import Server
from ps_wire.compression.choice import Choice
from ps_wire.compression.codec import Encoded
from ps_wire.compression.error_feedback import ErrorFeedback
from ps_wire.compression.registry import decode
from tests.integration.breaking import same_wherever_it_breaks
from tests.integration.replica_models import Net, Wide, Words
from tests.integration.support import AFFINE, bits, in_memory
from tests.integration.test_replicas import hosted_optimizer, images, joined, same, words
from tests.training import hosted_value
from tests.waiting import until
from trainer_client.transport.faulty import Fault, FaultyConnector, Plan

Inner = Callable[[Any], optim.Optimizer]


def adamw(parameters: Any) -> optim.Optimizer:
    return optim.AdamW(parameters, lr=0.01)


def sgd(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1)


class Reference:
    """The algorithm in one process.

    Args:
        first: The first parameters.
        method: How differences become a step.
        count: Trainers.
        inner: Makes the local optimizers.
        compress: The codec of differences.
    """

    def __init__(
        self,
        first: nn.Module,
        method: tc.LocalSGD | tc.DiLoCo,
        count: int,
        inner: Inner,
        compress: Choice | None = None,
    ) -> None:
        self.net = copy.deepcopy(first)
        self.outer = optim.SGD(self.net.parameters(), **method.options)
        self.locals = [copy.deepcopy(first) for _ in range(count)]
        self.inners = [inner(each.parameters()) for each in self.locals]
        self.feedback = [None if compress is None else ErrorFeedback(compress) for _ in range(count)]

    def round(self, data: Sequence[Sequence[torch.Tensor]]) -> None:
        """Local steps of each trainer with its batches, then one outer step."""
        differences = []
        for net, inner, feedback, batches in zip(self.locals, self.inners, self.feedback, data, strict=True):
            net.load_state_dict(self.net.state_dict())
            for x in batches:
                net(x).square().mean().backward()
                inner.step()
                inner.zero_grad()
            differences.append([self._sent(feedback, *each) for each in self._pairs(net)])
        for parameter, *each in zip(self.net.parameters(), *differences, strict=True):
            parameter.grad = torch.stack(each).mean(0)
        self.outer.step()

    def _pairs(self, net: nn.Module) -> list[tuple[str, torch.Tensor]]:
        return [
            (name, before.detach() - after.detach())
            for (name, before), after in zip(self.net.named_parameters(), net.parameters(), strict=True)
        ]

    @staticmethod
    def _sent(feedback: ErrorFeedback | None, name: str, difference: torch.Tensor) -> torch.Tensor:
        if feedback is None:
            return difference
        encoded = feedback.encode(name, difference)
        return decode(encoded, difference) if isinstance(encoded, Encoded) else encoded


class Trainer:
    """A trainer with a replica and its local steps."""

    def __init__(self, ps: tc.Client, net: tc.RemoteModule, replica: tc.Replica, local: tc.LocalSteps) -> None:
        self.ps, self.net, self.replica, self.local = ps, net, replica, local

    async def train(self, batches: Sequence[torch.Tensor]) -> list[tc.Stepped | None]:
        found = []
        for x in batches:
            self.replica(x).square().mean().backward()
            found.append(await self.local.step())
        return found


async def begun(
    ps: tc.Client, method: tc.LocalSGD | tc.DiLoCo, inner: Inner, compress: Any = None, **options: Any
) -> Trainer:
    net = await ps.module(Wide, 8, 2, name="net", seed=1)
    replica = await net.replica(compress=compress)
    return Trainer(ps, net, replica, await ps.local_steps(replica, inner(replica.parameters()), method, **options))


@asynccontextmanager
async def trainers(
    count: int, method: tc.LocalSGD | tc.DiLoCo, inner: Inner = sgd, compress: Any = None, **options: Any
) -> AsyncIterator[tuple[Server, list[Trainer]]]:
    options = {"policy": tc.policies.Sync(count), **options}
    async with joined(count) as (server, clients):
        yield server, [await begun(each, method, inner, compress, **options) for each in clients]


def data(count: int, every: int, seed: int) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(4, 8, generator=generator) for _ in range(every)] for _ in range(count)]


def close(found: nn.Module, expected: nn.Module) -> None:
    for (name, mine), theirs in zip(found.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=lambda text, name=name: f"{name}: {text}")


TOP, PLAIN = Choice(tc.codecs.TopK(0.2), min_numel=0), tc.DiLoCo(3, lr=0.5, momentum=0.0)


# Each two values of different parameters meet.
@pytest.mark.parametrize(
    ("method", "inner", "count", "compress"),
    [
        *((tc.LocalSGD(4), sgd, 2, None), (tc.LocalSGD(4), adamw, 3, TOP)),
        *((tc.DiLoCo(4), sgd, 3, TOP), (tc.DiLoCo(4), adamw, 2, None)),
        *((PLAIN, sgd, 2, TOP), (PLAIN, adamw, 3, None)),
    ],
)
async def test_rounds_equal_the_algorithm_written_out(
    method: tc.LocalSGD | tc.DiLoCo, inner: Inner, count: int, compress: Choice | None
) -> None:
    async with trainers(count, method, inner, compress) as (server, group):
        reference = Reference(group[0].replica.module, method, count, inner, compress)
        for turn in range(3):
            batches = data(count, method.every, turn)
            found = await asyncio.gather(*(each.train(x) for each, x in zip(group, batches, strict=True)))
            reference.round(batches)
            assert [each[:-1] for each in found] == [[None] * (method.every - 1)] * count
            assert [(each[-1].counted, each[-1].staleness) for each in found] == [(count, 0)] * count  # type: ignore[union-attr]
            close(group[0].replica, reference.net)
            assert all(same(each.replica, hosted_value(server, group[0].net)) for each in group)
        assert hosted_optimizer(server).version == 3


async def test_one_local_step_of_sgd_between_averages_is_sync_with_the_mean() -> None:
    async with trainers(2, tc.LocalSGD(1)) as (_, group), joined(2) as (_, clients):
        nets = [await ps.module(Wide, 8, 2, name="net", seed=1) for ps in clients]
        replicas = [await net.replica() for net in nets]
        opts = [
            await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, policy=tc.policies.Sync(2))
            for ps, net in zip(clients, nets, strict=True)
        ]
        for turn in range(4):
            batches = data(2, 1, turn)
            for replica, (x,) in zip(replicas, batches, strict=True):
                replica(x).square().mean().backward()
            await asyncio.gather(*(each.push(opt) for each, opt in zip(replicas, opts, strict=True)))
            await asyncio.gather(*(each.train(x) for each, x in zip(group, batches, strict=True)))
            close(group[0].replica, replicas[0])


async def test_parameters_become_the_average_of_those_that_trainers_have() -> None:
    async with trainers(2, tc.LocalSGD(3)) as (server, group):
        batches = data(2, 2, 0)
        await asyncio.gather(*(each.train(x) for each, x in zip(group, batches, strict=True)))
        own = [[parameter.detach().clone() for parameter in each.replica.parameters()] for each in group]
        assert not same(group[0].replica, group[1].replica)
        assert [each.local.steps for each in group] == [2, 2] and hosted_optimizer(server).version == 0
        await asyncio.gather(*(each.local.push() for each in group))
        assert [each.local.steps for each in group] == [0, 0]
        for found, *mine in zip(group[0].replica.parameters(), *own, strict=True):
            torch.testing.assert_close(found, torch.stack(mine).mean(0))


async def test_a_trainer_that_leaves_and_one_that_joins_change_the_mean_and_block_nothing() -> None:
    method = tc.DiLoCo(2)
    async with trainers(3, method, policy=tc.policies.Sync()) as (server, group):
        reference = Reference(group[0].replica.module, method, 2, sgd)
        waits = [asyncio.create_task(each.train(x)) for each, x in zip(group[:2], data(2, 2, 0), strict=True)]
        await until(lambda: len(hosted_optimizer(server).aggregator._offered) == 2)
        await group[2].ps.close()  # in the middle of its local steps
        assert [(await each)[-1].counted for each in waits] == [2, 2]  # type: ignore[union-attr]
        reference.round(data(2, 2, 0))
        close(group[0].replica, reference.net)
        async with tc.connect(server.address) as ps:
            late = await begun(ps, method, sgd, policy=None)
            assert same(late.replica, group[0].replica)
            batches = data(3, 2, 1)
            reference.locals.append(copy.deepcopy(reference.net))
            reference.inners.append(sgd(reference.locals[2].parameters()))
            reference.feedback.append(None)
            await asyncio.gather(*(each.train(x) for each, x in zip((*group[:2], late), batches, strict=True)))
            reference.round(batches)
            close(late.replica, reference.net)


async def test_a_dropped_difference_is_lost_and_leaves_the_owners_parameters() -> None:
    async with trainers(2, tc.LocalSGD(1), policy=tc.policies.Quorum(1, of=2)) as (server, (fast, slow)):
        await fast.train(data(1, 1, 0)[0])
        (dropped,) = await slow.train(data(1, 1, 1)[0])
        assert dropped is not None and dropped.dropped == "late" and slow.local.steps == 0
        assert same(slow.replica, hosted_value(server, fast.net)) and same(slow.replica, fast.replica)


async def test_a_push_that_does_not_count_keeps_the_local_parameters_for_the_next_one() -> None:
    method = tc.DiLoCo(2)
    async with trainers(2, method) as (server, group):
        reference = Reference(group[0].replica.module, method, 2, sgd)
        batches = data(2, 2, 0)
        waits = asyncio.create_task(group[0].train(batches[0]))
        await until(lambda: len(hosted_optimizer(server).aggregator._offered) == 1)
        own = bits([*group[0].replica.parameters()])
        waits.cancel()
        await until(lambda: not hosted_optimizer(server).aggregator._offered)
        assert bits([*group[0].replica.parameters()]) == own and group[0].local.steps == 2
        await asyncio.gather(group[0].local.push(), group[1].train(batches[1]))
        reference.round(batches)
        close(group[0].replica, reference.net)


async def test_a_push_that_was_cancelled_and_has_counted_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with trainers(1, tc.LocalSGD(1), policy=tc.policies.Async()) as (server, (one,)):
        part = one.local.optimizer.remotes["ps0"]
        before, sent = part.push, []

        def push(frame: Any, payload: Any, read: Any) -> Any:
            sent.append(before(frame, payload, lambda *_: None))  # the answer is lost
            return tc.Pending(asyncio.get_running_loop())

        (batches,) = data(1, 2, 0)
        with monkeypatch.context() as patch:
            patch.setattr(part, "push", push)
            lost = asyncio.create_task(one.train(batches[:1]))
            await until(lambda: bool(sent))
            await sent[0]
            lost.cancel()
            await asyncio.wait([lost])
        for _ in range(2):
            with pytest.raises(tc.errors.InvalidArgumentError, match=r"has counted.* call pull\(\)"):
                await one.local.push()
        assert hosted_optimizer(server).version == 1
        await one.replica.pull()
        assert same(one.replica, hosted_value(server, one.net))
        assert (await one.train(batches[1:]))[0] == {"ps0": 2}
        assert same(one.replica, hosted_value(server, one.net))


async def test_a_pull_discards_what_has_changed_here() -> None:
    async with trainers(1, tc.LocalSGD(5), policy=tc.policies.Async()) as (server, (one,)):
        await one.train(data(1, 2, 0)[0])
        assert not same(one.replica, hosted_value(server, one.net))
        assert await one.replica.pull() == 0
        assert same(one.replica, hosted_value(server, one.net))
        await one.local.push()
        assert same(one.replica, hosted_value(server, one.net))


async def test_a_difference_that_is_not_finite_can_be_refused() -> None:
    async with trainers(1, tc.LocalSGD(1), policy=tc.policies.Async(), non_finite="refuse") as (server, (one,)):
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await one.train([torch.full((1, 8), float("inf"))])
        assert all(each.isfinite().all() for each in hosted_value(server, one.net).parameters())
        await one.replica.pull()
        assert same(one.replica, hosted_value(server, one.net))


async def test_buffers_stay_local_and_frozen_parameters_as_they_are() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Net, name="net", seed=1)
        await net.parameter("conv.weight").requires_grad_(False)
        replica = await net.replica()
        frozen = replica.module.conv.weight.clone()
        local = await ps.local_steps(replica, optim.SGD(replica.parameters(), lr=0.1), tc.LocalSGD(2))
        for seed in range(2):
            replica(images(seed)).square().mean().backward()
            own = replica.module.norm.running_mean.clone()
            await local.step()
            assert torch.equal(replica.module.norm.running_mean, own) and own.any()
        assert torch.equal(hosted_value(server, net).conv.weight, frozen)
        assert not hosted_value(server, net).norm.running_mean.any()
        assert same(replica, hosted_value(server, net))


async def test_sparse_gradients_tied_parameters_and_another_dtype_train() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Words, name="net", seed=1)
        replica = (await net.replica()).to(torch.bfloat16)
        before = [each.clone() for each in hosted_value(server, net).parameters()]
        local = await ps.local_steps(replica, optim.SGD(replica.parameters(), lr=0.5), tc.LocalSGD(2))
        for seed in range(2):
            replica(words(seed)).float().square().sum().backward()
            await local.step()
        for found, mine, first in zip(
            hosted_value(server, net).parameters(), replica.parameters(), before, strict=True
        ):
            assert torch.equal(found.to(torch.bfloat16), mine) and not torch.equal(found, first)


async def test_closures_scalers_and_schedulers_of_the_local_optimizer_work() -> None:
    async with trainers(1, tc.LocalSGD(2), lambda ps: optim.LBFGS(ps, max_iter=2), policy=tc.policies.Async()) as (
        _,
        (one,),
    ):
        (x,) = data(1, 1, 0)[0]
        local = copy.deepcopy(one.replica.module)
        inner = optim.LBFGS(local.parameters(), max_iter=2)

        def closure(module: nn.Module) -> Callable[[], torch.Tensor]:
            def loss() -> torch.Tensor:
                module.zero_grad()
                found: torch.Tensor = module(x).square().mean()
                found.backward()
                return found

            return loss

        for _ in range(2):
            await one.local.step(closure(one.replica))
            inner.step(closure(local))
        close(one.replica, local)
    async with trainers(1, tc.LocalSGD(3), policy=tc.policies.Async()) as (_, (one,)):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        schedule = optim.lr_scheduler.StepLR(one.local.inner, 1, gamma=0.5)
        local = copy.deepcopy(one.replica.module)
        inner = sgd(local.parameters())
        its = optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
        for value in (1.0, float("inf"), 2.0):
            scaler.scale(one.replica(torch.full((1, 8), value)).sum()).backward()
            await one.local.step(scaler=scaler)
            scaler.update()
            schedule.step()
            if value != float("inf"):
                local(torch.full((1, 8), value)).sum().backward()
                inner.step()
                inner.zero_grad()
            its.step()
        assert scaler.get_scale() == 512.0
        close(one.replica, local)


async def test_what_makes_no_sense_is_refused() -> None:
    for wrong in (0, True, 1.5):
        with pytest.raises(tc.errors.InvalidArgumentError, match="every"):
            tc.LocalSGD(wrong)  # type: ignore[arg-type]
    with pytest.raises(tc.errors.InvalidArgumentError, match="momentum"):
        tc.DiLoCo(1, momentum=float("nan"))
    async with trainers(1, tc.LocalSGD(2)) as (_, (one,)):
        with pytest.raises(tc.errors.InvalidArgumentError, match="local steps"):
            await one.replica.push(one.local.optimizer)
        with pytest.raises(tc.errors.InvalidArgumentError, match="sum"):
            await one.ps.local_steps(
                one.replica, one.local.inner, tc.LocalSGD(2), policy=tc.policies.Sync(reduce="sum")
            )
        with pytest.raises(tc.errors.InvalidArgumentError, match="no parameter of the replica"):
            one.replica.local_steps(sgd(nn.Linear(1, 1).parameters()), one.local.optimizer, every=2)
        overlapping = await one.net.replica(overlap=1)
        with pytest.raises(tc.errors.InvalidArgumentError, match="overlap"):
            overlapping.local_steps(sgd(overlapping.parameters()), one.local.optimizer, every=2)
        with pytest.raises(tc.errors.NameConflictError):
            await one.ps.local_steps(one.replica, one.local.inner, tc.DiLoCo(2))


async def job(plan: Plan) -> Any:
    """Two trainers of two rounds; the stream of the first breaks."""
    async with in_memory() as owner, AsyncExitStack() as stack:
        group = []
        for line in (FaultyConnector(owner.connector(), plan), owner.connector()):
            ps = await stack.enter_async_context(tc.connect(line))
            net = await ps.module(AFFINE, 3, 2, name="net", seed=0)
            replica = await net.replica(compress=Choice(tc.codecs.TopK(0.5), min_numel=0))
            local = await ps.local_steps(replica, sgd(replica.parameters()), tc.DiLoCo(2), policy=tc.policies.Sync(2))
            group.append(Trainer(ps, net, replica, local))
        for turn in range(2):
            batches = [[torch.full((2, 3), turn + 1.0)] * 2] * 2
            await asyncio.gather(*(each.train(x) for each, x in zip(group, batches, strict=True)))
        last = bits(await net.state_dict())
        assert [bits(each.replica.module.state_dict()) for each in group] == [last] * 2
        return bits([await net.state_dict(), await group[0].local.optimizer.state_dict()])


async def test_a_difference_counts_once_wherever_the_stream_breaks() -> None:
    await same_wherever_it_breaks(job, Fault.CUT_AFTER, kinds=["push"])
