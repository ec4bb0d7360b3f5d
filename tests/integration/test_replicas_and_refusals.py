"""Tests of what replicas refuse: classes that are not known, gradients that do not fit, optimizers elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.compression.codec import Encoded
from ps_wire.runtime.noop import noop
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Request
from tests.integration.replica_models import Net, Wide
from tests.integration.support import bits
from tests.integration.test_replicas import hosted_optimizer, joined, same
from tests.training import hosted_value
from tests.waiting import until


async def test_names_of_classes_come_from_the_program_and_never_from_the_owner() -> None:
    async with joined(2) as (_, (one, two)):
        net = await one.module("tests.integration.replica_models.Wide", 8, name="net", seed=1)
        assert type((await net.replica()).module) is Wide
        assert type((await (await one.module("torch.nn.Linear", 2, 2)).replica()).module) is nn.Linear
        attached = await two.attach("net")
        assert isinstance(attached, tc.RemoteModule)
        with pytest.raises(
            tc.errors.InvalidArgumentError, match=r"does not know how .*Wide was made.*net\.replica\(lambda"
        ):
            attached.replica()
        replica = await attached.replica(lambda: Wide(8))
        assert same(replica, await net.replica()) and same(replica, await net.replica(Wide))
        net.made_by = net.made_by._replace(cls="tests.integration.replica_models.Missing")  # type: ignore[union-attr]
        with pytest.raises(
            tc.errors.InvalidArgumentError, match=r"no class 'tests\.integration.replica_models\.Missing'"
        ):
            net.replica()


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (lambda: Wide(9), r"'layers.0.weight' has shape \(8, 8\) and torch.float32 there, and \(\(9, 9\)"),
        (lambda: Wide(8).double(), "torch.float64"),
        (lambda: Wide(8, 5), r"parameters that the one on the owner lacks: \['layers.4.weight'"),
        (lambda: Wide(8, 3), "'layers.3.weight' .* 'does not exist' here|does not exist here"),
        (lambda: 3, "not from a int"),
        (3, "neither a class nor a function"),
    ],
)
async def test_a_module_that_is_not_like_the_owners_is_refused(factory: Any, why: str) -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        with pytest.raises(tc.errors.InvalidArgumentError, match=why):
            net.replica(factory)
        with pytest.raises(tc.errors.InvalidArgumentError, match="'consistent' or 'inconsistent'"):
            net.replica(reads="sometimes")  # type: ignore[arg-type]


def push(net: tc.RemoteModule, opt: tc.DistributedOptimizer, gradients: Any, **fields: Any) -> Any:
    """A push as no replica sends it."""
    payload = PayloadWriter()
    request = pb.PushRequest(target=net.ref.to_message(), optimizer=opt.remotes["ps0"].handle.ref.to_message())
    Encoder(payload).encode_into(request.gradients, gradients)
    for name, value in fields.items():
        getattr(request, name).extend(value)
    return net.session.submit(Request(push=request), payload, noop)


GOOD = [torch.ones(8, 8), torch.ones(8)]


BAD: list[tuple[Any, list[int], list[int], str]] = [
    ([torch.ones(8, 8), torch.ones(9)], [0, 1], [0, 0], "gradient of 'layers.0.bias' does not fit"),
    ([torch.ones(8, 8), torch.ones(8).double()], [0, 1], [0, 0], "'layers.0.bias' does not fit.*float64"),
    ([torch.ones(8, 8), "x"], [0, 1], [0, 0], "'layers.0.bias' is a str"),
    ([torch.ones(8, 8), torch.ones(9).to_sparse()], [0, 1], [0, 0], "'layers.0.bias' does not fit"),
    (GOOD, [0, 0], [0, 0], "twice"),
    (GOOD, [0, 99], [0, 0], "does not have"),
    (GOOD, [0], [0, 0], "for each a position"),
    (GOOD, [0, 1], [0], "for each a position"),
    ("x", [0, 1], [0, 0], "list of gradients"),
    ([torch.ones(8, 8), Encoded("fp16", {}, (torch.ones(9).half(),))], [0, 1], [0, 0], "does not fit"),
    ([torch.ones(8, 8), Encoded("no such", {}, ())], [0, 1], [0, 0], "no codec 'no such'"),
]
"""Gradients, positions and steps of pushes, and why each is refused."""


@pytest.mark.parametrize("policy", [None, tc.policies.Sync(1)], ids=["plain", "sync"])
async def test_a_push_that_does_not_fit_is_one_error_and_changes_nothing(policy: tc.policies.Policy | None) -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, policy=policy)
        for version, (gradients, positions, steps, why) in enumerate(BAD):
            before = bits(await net.state_dict())
            with pytest.raises(tc.errors.InvalidArgumentError, match=why):
                await push(net, opt, gradients, positions=positions, steps=steps)
            assert bits(await net.state_dict()) == before and hosted_optimizer(server).version == version
            await push(net, opt, GOOD, positions=[0, 1], steps=[0, 0])
            assert hosted_optimizer(server).version == version + 1


async def test_a_push_needs_an_optimizer_of_the_module_on_one_owner() -> None:
    async with joined(2) as (_, (ps, other)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        layer = await ps.module(nn.Linear, 2, 2, name="layer", seed=1)
        replica = await net.replica()
        replica(torch.ones(1, 8)).sum().backward()
        spread = await ps.optimizer(optim.SGD, [*net.parameters(), nn.Parameter(torch.ones(1))], lr=0.1)
        with pytest.raises(tc.errors.InvalidArgumentError, match="all on one owner"):
            replica.push(spread)
        theirs = await other.optimizer(
            optim.SGD, (await other.module(Wide, 8, name="net", seed=1)).parameters(), lr=0.1
        )
        with pytest.raises(tc.errors.InvalidArgumentError, match="this client"):
            replica.push(theirs)
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"as Client\.optimizer\(\) returns, not a SGD"):
            replica.push(optim.SGD(replica.parameters(), lr=0.1))  # type: ignore[arg-type]
        assert all(each.grad is not None for each in replica.parameters())
        with pytest.raises(tc.errors.InvalidArgumentError, match="steps no parameter"):
            await replica.push(await ps.optimizer(optim.SGD, layer.parameters(), lr=0.1))


@pytest.mark.parametrize("policy", [None, tc.policies.Sync(1)], ids=["plain", "sync"])
async def test_an_optimizer_that_refuses_what_is_not_finite_refuses_pushes(policy: tc.policies.Policy | None) -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, non_finite="refuse", policy=policy)
        replica = await net.replica()
        for bad in (True, False):
            replica(torch.full((1, 8), float("nan") if bad else 1.0)).sum().backward()
            if bad:
                with pytest.raises(tc.errors.NonFiniteGradientError):
                    await replica.push(opt)
                assert all(each.grad is None for each in replica.parameters())
            else:
                await replica.push(opt)
        assert hosted_optimizer(server).version == 1 and same(replica, hosted_value(server, net))


async def test_pulls_of_what_has_no_parameters_and_of_other_numbers_are_refused() -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module(Net, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        handle = opt.remotes["ps0"].handle
        asks: list[Callable[[], pb.PullRequest]] = [
            lambda: pb.PullRequest(target=handle.ref.to_message()),
            lambda: pb.PullRequest(target=net.ref.to_message(), marks=[1]),
            lambda: pb.PullRequest(target=net.ref.to_message(), reads=7),  # type: ignore[arg-type]
        ]
        for ask, why in zip(asks, ("is no module", "the replica has marks of 1", "not 7"), strict=True):
            with pytest.raises(tc.errors.InvalidArgumentError, match=why):
                await net.session.submit(Request(pull=ask()), None, noop)


async def test_a_cancelled_push_leaves_its_round() -> None:
    async with joined() as (server, (ps,)):
        net = await ps.module(Wide, 8, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, policy=tc.policies.Quorum(2, of=2))
        replica = await net.replica()
        replica(torch.ones(1, 8)).sum().backward()
        pending = replica.push(opt)
        await until(lambda: len(hosted_optimizer(server).aggregator._offered) == 1)
        pending.cancel()
        await until(lambda: not hosted_optimizer(server).aggregator._offered)


@pytest.mark.parametrize("several", [False, True], ids=["one replica", "several"])
async def test_a_push_to_an_optimizer_of_this_process_is_refused(several: bool) -> None:
    async with joined(1) as (_, (ps,)):
        net = await ps.module(Wide, 4, seed=1)
        replica = await net.replica()
        model = ps.replicas(nn.Sequential(replica)) if several else replica
        model(torch.ones(1, 4)).sum().backward()
        local: Any = optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"not a SGD; to step the replica itself"):
            await model.push(local)


@pytest.mark.parametrize("several", [False, True], ids=["one replica", "several"])
async def test_a_push_beside_the_pass_that_has_the_gradients_is_refused(several: bool) -> None:
    async with joined() as (_, (ps,)):
        net = await ps.module("torch.nn.Linear", 3, 2, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        replica = await net.replica()
        model = ps.replicas(nn.Sequential(replica)) if several else replica
        async with ps.context() as ctx:
            await ctx.backward(model(torch.ones(1, 3)).sum())
            with pytest.raises(tc.errors.InvalidArgumentError, match=r"would do nothing: .* Give it with context=ctx"):
                await model.push(opt)
            await model.push(opt, context=ctx)
        assert (await ps.status()).optimizers[0].version == 1
        async with ps.context():
            model(torch.ones(1, 3)).sum().backward()
            await model.push(opt)
            await model.push(opt)  # without any gradient, as it may be
