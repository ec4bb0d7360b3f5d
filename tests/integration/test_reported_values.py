"""Tests of values that trainers report with gradients: who gets what, under every policy, over one or more owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import optim

import trainer_client as tc
from ps_service.server import Server
from ps_wire.limits import MAX_REPORTED_BYTES, MAX_REPORTED_NAMES
from tests.integration import spanning
from tests.integration.replicas_over_owners import pushers
from tests.integration.test_policies import Trainer, hosted, trainers, waiting
from tests.training import apart
from tests.waiting import until

X = torch.ones(2, 3)


@asynccontextmanager
async def replicas(
    count: int, policy: tc.policies.Policy | None
) -> AsyncIterator[tuple[Server, list[Trainer], list[tc.Replica]]]:
    async with trainers(count, policy) as (server, group):
        yield server, group, [await each.net.replica() for each in group]


async def push(trainer: Trainer, replica: tc.Replica, **more: Any) -> tc.Stepped:
    replica(X).square().mean().backward()
    stepped = await replica.push(trainer.opt, **more)
    assert stepped is not None
    return stepped


async def step(trainer: Trainer | spanning.Trainer, **more: Any) -> tc.Stepped:
    """A pass and a step with values, in a task of its own."""

    async def run() -> tc.Stepped:
        async with trainer.client.context() as ctx:
            loss = await trainer.loss(X) if isinstance(trainer, spanning.Trainer) else (await trainer.net(X)).sum()
            await ctx.backward(loss)
            return await trainer.opt.step(ctx, **more)

    return await apart(run())


@pytest.mark.parametrize("policy", [tc.policies.Sync(3), tc.policies.Quorum(3, of=3)], ids=str)
async def test_every_trainer_of_a_round_gets_its_reduced_values(policy: tc.policies.Policy) -> None:
    async with replicas(3, policy) as (_, group, copies):
        for round_number in range(2):
            found = await asyncio.gather(
                *(
                    push(
                        each,
                        replica,
                        values={
                            "loss": rank / 2,
                            "samples": 10 + rank,
                            "host": f"h{rank}",
                            "hits": torch.tensor([rank, 1]),
                        },
                        reduce={"samples": "sum", "host": "keep", "hits": "sum"},
                    )
                    for rank, (each, replica) in enumerate(zip(group, copies, strict=True))
                )
            )
            for stepped in found:
                reported = stepped.reported
                assert reported.pop("hits").tolist() == [3, 3]
                names = [each.client.trainer_name for each in group]
                kept = {name: f"h{rank}" for rank, name in enumerate(names)}
                assert reported == {"loss": 0.5, "samples": 33, "host": kept}
                assert stepped["ps0"] == round_number + 1


async def test_steps_and_pushes_of_one_round_are_reduced_together() -> None:
    async with replicas(3, tc.policies.Sync(3)) as (_, group, copies):
        pushed, stepped, silent = await asyncio.gather(
            push(group[0], copies[0], values={"loss": torch.tensor(1.0, requires_grad=True)}),
            step(group[1], values={"loss": np.float32(2.0)}),
            group[2].step(X, joined=True),
        )
        # The trainer that has reported nothing hears of the others', also in the answer to a backward.
        assert pushed.reported == stepped.reported == silent.reported == {"loss": 1.5}


@pytest.mark.parametrize(
    "policy", [None, tc.policies.Async(tc.policies.Scale()), tc.policies.BoundedStaleness(100)], ids=str
)
async def test_values_of_rounds_of_one_gradient_meet_in_the_running_values(policy: tc.policies.Policy | None) -> None:
    async with replicas(2, policy) as (_, group, copies):
        names = [each.client.trainer_name for each in group]
        for number in range(3):
            for rank, (each, replica) in enumerate(zip(group, copies, strict=True)):
                values = {"loss": float(number), "samples": rank + 1, "step": number}
                found = await push(each, replica, values=values, reduce={"samples": "sum", "step": "keep"})
                # A round of one gradient has its values.
                assert found.reported == {**values, "step": {names[rank]: number}}
        await push(group[0], copies[0])  # without values
        for reset in (False, True):
            read = await group[1].opt.values(reset=reset)
            assert read == {"loss": 1.0, "samples": 9, "step": {names[0]: 2, names[1]: 2}}
            assert (read.gradients, read.counts) == (6, {"loss": 6, "samples": 6, "step": 6})
        read = await group[0].opt.values()
        assert (dict(read), read.counts, read.gradients) == ({}, {}, 0)


async def test_a_quorum_of_anybody_counts_values_when_its_round_is_complete() -> None:
    async with replicas(2, tc.policies.Quorum(3)) as (server, group, copies):
        for number in range(2):
            found = await push(group[0], copies[0], values={"loss": number}, reduce="sum")
            assert (found.reported, found.counted) == ({}, 0)
        assert await group[0].opt.values(reset=True) == {}
        # The names of the open round are in use nevertheless.
        with pytest.raises(tc.errors.InvalidArgumentError, match="'loss' is reduced by 'sum'"):
            await push(group[1], copies[1], values={"loss": 1.0})
        found = await push(group[1], copies[1], values={"loss": 10}, reduce="sum")
        assert (found.reported, found.counted) == ({"loss": 11}, 3)
        read = await group[1].opt.values()
        assert (dict(read), read.counts) == ({"loss": 11}, {"loss": 3})
        assert not hosted(server).aggregator._outcomes
        await push(group[1], copies[1], values={"loss": 1.0})


async def test_values_of_gradients_that_are_dropped_do_not_count() -> None:
    async with replicas(2, tc.policies.Quorum(1, of=2)) as (_, (one, two), copies):
        late = copies[1](X).sum()
        assert (await push(one, copies[0], values={"loss": 1.0})).reported == {"loss": 1.0}
        late.backward()
        found = await copies[1].push(two.opt, values={"loss": 9.0})
        assert found is not None and (found.dropped, found.reported) == ("late", {})
        assert await two.opt.values() == {"loss": 1.0}


async def test_values_of_cancelled_and_lost_gradients_do_not_count() -> None:
    async with replicas(3, tc.policies.Sync(2)) as (server, (one, two, three), copies):
        first = asyncio.create_task(push(one, copies[0], values={"loss": 100.0}))
        await until(lambda: waiting(server) == 1)
        first.cancel()
        await until(lambda: waiting(server) == 0)
        second = asyncio.create_task(push(two, copies[1], values={"loss": 50.0}))
        await until(lambda: waiting(server) == 1)
        await two.client.close()
        with pytest.raises(tc.PsError):
            await second
        await until(lambda: waiting(server) == 0)
        found = await asyncio.gather(
            push(three, copies[2], values={"loss": 2.0}), push(one, copies[0], values={"loss": 1.0})
        )
        assert [each.reported for each in found] == [{"loss": 1.5}] * 2
        assert not any(use.reports for use in hosted(server).reported._uses.values())


async def test_values_of_a_round_whose_step_fails_do_not_count() -> None:
    async with trainers(2, tc.policies.Sync(2), non_finite="refuse") as (_, group):
        copies = [await each.net.replica() for each in group]

        async def huge(trainer: Trainer, replica: tc.Replica) -> None:
            # Each gradient is finite, and their sum is not.
            (replica(X).sum() * 1e38).backward()
            await replica.push(trainer.opt, values={"loss": 1.0})

        found = await asyncio.gather(*map(huge, group, copies), return_exceptions=True)
        assert all(isinstance(each, tc.errors.NonFiniteGradientError) for each in found)
        assert await group[0].opt.values() == {}
        with pytest.raises(tc.errors.NonFiniteGradientError):
            (copies[0](X).sum() * torch.inf).backward()
            await copies[0].push(group[0].opt, values={"other": 1.0})
        found = await asyncio.gather(
            *(
                push(each, replica, values={"loss": 2, "other": "x"}, reduce="keep")
                for each, replica in zip(group, copies, strict=True)
            )
        )
        assert [len(each.reported) for each in found] == [2, 2]


@pytest.mark.parametrize("policy", [None, tc.policies.Sync(1)], ids=str)
async def test_a_step_behind_a_backward_that_was_not_awaited_brings_its_values(
    policy: tc.policies.Policy | None,
) -> None:
    async with trainers(1, policy) as (_, (one,)), one.client.context() as ctx:
        backward = ctx.backward((await one.net(X)).sum())
        stepped = await one.opt.step(ctx, values={"loss": 4.0})
        await backward
        assert stepped.reported == {"loss": 4.0} and stepped["ps0"] == 1


async def test_values_of_an_open_round_whose_step_fails_do_not_count() -> None:
    async with trainers(1, tc.policies.Quorum(2), non_finite="refuse") as (server, (one,)):
        replica = await one.net.replica()
        # Each gradient is finite, and their sum is not. The first is answered before the step.
        (replica(X).sum() * 1e38).backward()
        await replica.push(one.opt, values={"loss": 1.0})
        (replica(X).sum() * 1e38).backward()
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await replica.push(one.opt, values={"loss": 1.0})
        found = hosted(server).reported
        await until(lambda: not any(use.reports for use in found._uses.values()))
        assert await one.opt.values() == {}


async def test_values_of_a_step_that_fails_do_not_count() -> None:
    async with trainers(1, None, non_finite="refuse") as (server, (one,)):
        replica = await one.net.replica()
        with pytest.raises(tc.errors.NonFiniteGradientError):
            (replica(X).sum() * torch.inf).backward()
            await replica.push(one.opt, values={"loss": 1.0})
        assert await one.opt.values() == {}
        assert not hosted(server).reported._uses


@pytest.mark.parametrize("policy", [None, tc.policies.Sync(2)], ids=str)
async def test_values_over_several_owners_count_once(policy: tc.policies.Policy | None) -> None:
    async with spanning.trainers(2, policy) as (servers, group):
        found = await asyncio.gather(
            *(step(each, values={"loss": float(rank), "n": 1}, reduce={"n": "sum"}) for rank, each in enumerate(group))
        )
        if policy is None:
            assert [each.reported for each in found] == [{"loss": 0.0, "n": 1}, {"loss": 1.0, "n": 1}]
        else:
            assert [each.reported for each in found] == [{"loss": 0.5, "n": 2}] * 2
        read = await group[0].opt.values()
        assert (dict(read), read.gradients) == ({"loss": 0.5, "n": 2}, 2)
        assert all(set(each) == {"ps0", "ps1"} for each in found)
        assert hosted(servers[1]).reported.read(reset=False).gradients == 0


REFUSED: list[tuple[Any, Any, str]] = [
    ({"": 1.0}, "mean", "text of 1 to 128"),
    ({"x" * 129: 1.0}, "mean", "text of 1 to 128"),
    ({1: 1.0}, "mean", "text of 1 to 128"),
    ({"loss": "low"}, "mean", "'loss' is a str, which has no mean"),
    ({"loss": None}, "sum", "'loss' is a NoneType"),
    ({"loss": 1 << 63}, "sum", "integers of 64 bits"),
    ({"loss": 1.0}, "max", "by one of mean, sum, keep"),
    ({"loss": 1.0}, {"accuracy": "sum"}, "there is no such value"),
    ({"loss": torch.eye(3).to_sparse()}, "sum", "dense tensors"),
    ({str(number): 1 for number in range(MAX_REPORTED_NAMES + 1)}, "mean", "at most 64"),
    ({"big": torch.zeros(MAX_REPORTED_BYTES // 4 + 1)}, "sum", "65,536"),
    ({"big": "x" * MAX_REPORTED_BYTES}, "keep", "65,536"),
    ({"odd": object()}, "keep", "cannot be sent"),
    ([("loss", 1.0)], "mean", "dictionary by name"),
]
"""Values, their reductions, and what the error says."""


@pytest.mark.parametrize("policy", [None, tc.policies.Async(tc.policies.Scale())], ids=str)
async def test_values_that_do_not_fit_are_refused_before_anything_changes(policy: tc.policies.Policy | None) -> None:
    async with replicas(1, policy) as (server, (one,), (replica,)):
        replica(X).sum().backward()
        gradient = replica.module.weight.grad
        for values, reduce, error in REFUSED:
            with pytest.raises((tc.errors.InvalidArgumentError, tc.errors.TooLargeError), match=error):
                await replica.push(one.opt, values=values, reduce=reduce)
            with pytest.raises((tc.errors.InvalidArgumentError, tc.errors.TooLargeError), match=error):
                await step(one, values=values, reduce=reduce)
        assert replica.module.weight.grad is gradient
        assert hosted(server).version == 0


@pytest.mark.parametrize("policy", [None, tc.policies.Sync(1)], ids=str)
async def test_values_under_one_name_are_of_one_kind_until_they_are_reset(policy: tc.policies.Policy | None) -> None:
    async with replicas(1, policy) as (server, (one,), (replica,)):
        await push(one, replica, values={"hits": torch.ones(2), "n": 1})
        for values, reduce, error in (
            ({"hits": torch.ones(3)}, "mean", r"is a torch.float32 tensor of shape \(2,\) since"),
            ({"hits": 1.0}, "mean", "and not a number"),
            ({"n": 1, "hits": torch.ones(2)}, {"n": "sum"}, "'n' is reduced by 'mean'"),
            ({f"more{each}": 1.0 for each in range(MAX_REPORTED_NAMES - 1)}, "mean", "more than 64 names"),
        ):
            with pytest.raises((tc.errors.InvalidArgumentError, tc.errors.TooLargeError), match=error):
                await push(one, replica, values=values, reduce=reduce)
        assert hosted(server).version == 1
        assert (await one.opt.values()).counts == {"hits": 1, "n": 1}
        await push(one, replica, values={"hits": torch.ones(3), "n": 1}, reduce="sum")
        assert (await one.opt.values())["hits"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("policy", [None, tc.policies.Sync(2)], ids=str)
async def test_pushes_of_replicas_of_several_owners_report_values_once(policy: tc.policies.Policy | None) -> None:
    async with spanning.trainers(2, policy) as (_, group):
        models = [
            each.client.replicas(torch.nn.Sequential(*[await net.replica() for net in each.nets])) for each in group
        ]

        async def run(rank: int) -> tc.Stepped:
            models[rank](X).sum().backward()
            stepped = await models[rank].push(group[rank].opt, values={"loss": float(rank)})
            assert stepped is not None
            return stepped

        found = await asyncio.gather(run(0), run(1))
        assert [each.reported["loss"] for each in found] == ([0.0, 1.0] if policy is None else [0.5, 0.5])
        read = await group[1].opt.values()
        assert (dict(read), read.gradients) == ({"loss": 0.5}, 2)


@pytest.mark.parametrize("policy", [None, tc.policies.Sync(1)], ids=str)
@pytest.mark.parametrize("pushes", [False, True])
async def test_values_that_one_of_several_owners_refuses_step_none(
    policy: tc.policies.Policy | None, pushes: bool
) -> None:
    """Only the first owner counts values. It refuses them, and the others must not step then."""
    async with pushers(1, policy) as (servers, (one,)):
        known = spanning.Trainer(one.client, one.nets, one.opt)

        async def train(value: Any) -> tc.Stepped | None:
            values = {"loss": value}
            return await (one.step(torch.ones(1, 3), values=values) if pushes else step(known, values=values))

        await train(1.0)
        with pytest.raises(tc.errors.InvalidArgumentError, match="is a number since"):
            await train(torch.ones(2))
        assert [spanning.hosted(server).version for server in servers] == [1, 1]
        stepped = await train(2.0)
        assert stepped == {"ps0": 2, "ps1": 2} and stepped.reported == {"loss": 2.0}


async def test_a_scaler_that_skips_a_step_skips_its_values() -> None:
    async with replicas(1, None) as (_, (one,), (replica,)):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        (scaler.scale(replica(X).sum()) * torch.inf).backward()
        assert await replica.push(one.opt, scaler=scaler, values={"loss": 1.0}) is None
        scaler.update()
        async with one.client.context() as ctx:
            await ctx.backward(scaler.scale((await one.net(X)).sum()))
            stepped = await one.opt.step(ctx, scaler, values={"loss": 2.0})
        assert stepped is not None and stepped.reported == {"loss": 2.0}
        assert await one.opt.values() == {"loss": 2.0}


async def test_small_values_do_not_keep_the_message_that_brought_them() -> None:
    async with replicas(1, None) as (server, (one,), (replica,)):
        await push(one, replica, values={"kept": torch.ones(4), "sum": torch.ones(4)}, reduce={"kept": "keep"})
        total = hosted(server).reported._total
        ((kept,),) = [each.values() for each in total._kept.values()]
        assert kept.untyped_storage().nbytes() == 16


async def test_values_need_an_owner(ps: tc.Client) -> None:
    opt = await ps.optimizer(optim.SGD, [torch.ones(2, requires_grad=True)], lr=0.1)
    async with ps.context() as ctx:
        with pytest.raises(tc.errors.InvalidArgumentError, match="no parameters on one"):
            await opt.step(ctx, values={"loss": 1.0})
    with pytest.raises(tc.errors.InvalidArgumentError, match="no parameters on one"):
        await opt.values()


async def test_the_blocking_client_reports_values_too(owner: Server) -> None:
    def train() -> None:
        with tc.connect(owner.address) as ps:
            net = ps.module("torch.nn.Linear", 3, 2)
            opt = ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
            with ps.context() as ctx:
                ctx.backward(net(X).sum())
                assert opt.step(ctx, values={"loss": 3.0}).reported == {"loss": 3.0}
            replica = net.replica()
            replica(X).sum().backward()
            assert replica.push(opt, values={"loss": 1.0}).reported == {"loss": 1.0}
            assert opt.values() == {"loss": 2.0}

    async with AsyncExitStack():
        await asyncio.to_thread(train)
