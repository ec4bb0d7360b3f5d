"""Tests that stale gradients are corrected with the parameters that their trainer saw, whatever has changed them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service import hosted, remote
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from ps_service.training import parameter_history
from tests.training import apart

State = dict[str, torch.Tensor]
STRENGTH = 0.5
X = torch.tensor([[1.0, -2.0, 0.5], [0.25, 1.0, -1.0]])


@hosted
class Halving(nn.Linear):
    """A layer with code that writes to its parameters."""

    @remote
    def halve(self) -> None:
        """Halves them in place."""
        with torch.no_grad():
            for each in self.parameters():
                each.mul_(0.5)

    @remote
    def replace(self) -> None:
        """Gives them other memory."""
        for each in self.parameters():
            each.data = each.detach() * 0.5


class Trained(NamedTuple):
    """A layer, the optimizer that corrects gradients, and others of the same parameters that do not."""

    client: tc.Client
    net: tc.RemoteModule
    opt: tc.DistributedOptimizer
    plain: tc.DistributedOptimizer
    joint: tc.DistributedOptimizer

    async def state(self) -> State:
        return {name: value.clone() for name, value in (await self.net.state_dict()).items()}

    async def change(self, how: str) -> None:
        """Changes the parameters, so that each way leaves other values."""
        if how == "load":
            await self.net.load_state_dict({name: value + 0.75 for name, value in (await self.state()).items()})
        elif how in ("halve", "replace"):
            await getattr(self.net, how)()
        else:
            await apart(self.step({"step": self.opt, "another": self.plain, "joint": self.joint}[how]))

    async def step(self, opt: tc.DistributedOptimizer) -> None:
        async with self.client.context() as ctx:
            loss = (await self.net(-X)).sum()
            await ctx.backward(loss, step=[self.plain, self.joint] if opt is self.joint else opt)


@pytest.fixture
async def trained() -> AsyncIterator[Trained]:
    allowed = AllowList()
    allowed.allow(Halving)
    async with Server(Engine("ps0", allowed)) as server, tc.connect(server.address) as ps:
        net = await ps.module(Halving, 3, 2, name="net", seed=1)
        opt = await ps.optimizer(
            optim.SGD, net.parameters(), name="opt", lr=0.1, policy=tc.policies.Async(tc.policies.Compensate(STRENGTH))
        )
        plain, joint = [await ps.optimizer(optim.SGD, net.parameters(), name=f"lr {lr}", lr=lr) for lr in (0.3, 0.2)]
        yield Trained(ps, net, opt, plain, joint)


def gradients_of(then: State) -> State:
    """The gradients that a trainer computes which has read these parameters."""
    net = nn.Linear(3, 2)
    net.load_state_dict(then)
    names = [name for name, _ in net.named_parameters()]
    return dict(zip(names, torch.autograd.grad(net(X).square().mean(), list(net.parameters())), strict=True))


def corrected(then: State, now: State) -> State:
    """The parameters after the step with a gradient that is of earlier ones."""
    return {
        name: now[name] - 0.1 * (each + STRENGTH * each * each * (now[name] - then[name]))
        for name, each in gradients_of(then).items()
    }


def holds(found: State, expected: State) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


CHANGES = ["step", "load", "another", "joint", "halve", "replace"]


@pytest.mark.parametrize("before", CHANGES)
@pytest.mark.parametrize("after", CHANGES)
async def test_a_gradient_is_corrected_by_what_has_changed_since_its_trainer_read(
    trained: Trained, before: str, after: str
) -> None:
    for how in ("step", before):
        await trained.change(how)
    then = await trained.state()
    async with trained.client.context() as ctx:
        await ctx.backward((await trained.net(X)).square().mean())
        await trained.change(after)
        now = await trained.state()
        await trained.opt.step(ctx)
    holds(await trained.state(), corrected(then, now))


@pytest.mark.parametrize("how", CHANGES)
async def test_the_gradient_of_a_replica_is_corrected_by_what_has_changed_since_its_pull(
    trained: Trained, how: str
) -> None:
    replica = await trained.net.replica(lambda: nn.Linear(3, 2))
    for each in ("step", how):
        await trained.change(each)
    await replica.pull()
    then = await trained.state()
    replica(X).square().mean().backward()
    await trained.change(how)
    now = await trained.state()
    await replica.push(trained.opt)
    holds(await trained.state(), corrected(then, now))


async def test_what_a_pass_itself_has_stepped_is_no_change_since_it_read(trained: Trained) -> None:
    then = await trained.state()
    async with trained.client.context() as ctx:
        await ctx.backward((await trained.net(X)).square().mean())
        await trained.plain.step(ctx)
        now = await trained.state()
        await trained.opt.step(ctx)
    holds(await trained.state(), {name: now[name] - 0.1 * each for name, each in gradients_of(then).items()})


async def test_a_gradient_of_before_the_policy_was_set_is_applied_as_it_is(trained: Trained) -> None:
    await trained.opt.set_policy(tc.policies.Async())
    then = await trained.state()
    async with trained.client.context() as ctx:
        await ctx.backward((await trained.net(X)).square().mean())
        await trained.change("load")
        now = await trained.state()
        await trained.opt.set_policy(tc.policies.Async(tc.policies.Compensate(STRENGTH)))
        await trained.opt.step(ctx)
    holds(await trained.state(), {name: now[name] - 0.1 * each for name, each in gradients_of(then).items()})


async def test_another_optimizer_steps_although_there_is_no_memory_to_keep_values(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    before = await trained.state()
    with monkeypatch.context() as patched:
        patched.setattr(parameter_history._Copies, "keep", fails)
        await trained.change("another")
    assert "values of a parameter were not kept" in caplog.text
    then = await trained.state()
    assert not torch.equal(then["weight"], before["weight"])
    async with trained.client.context() as ctx:
        await ctx.backward((await trained.net(X)).square().mean())
        await trained.change("another")
        now = await trained.state()
        await trained.opt.step(ctx)
    holds(await trained.state(), {name: now[name] - 0.1 * each for name, each in gradients_of(then).items()})
