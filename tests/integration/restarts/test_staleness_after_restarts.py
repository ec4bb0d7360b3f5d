"""Tests that gradients of replicas that were pulled before a restart are as stale as without it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import Action, checkpoint

X = torch.tensor([[3.0, -2.0, 1.5], [0.25, 3.0, -1.0]])
STRENGTH = 0.5
STEPS = 7

State = dict[str, torch.Tensor]


class Trainer(NamedTuple):
    """A trainer with a replica of the layer that all train."""

    net: tc.RemoteModule
    opt: tc.DistributedOptimizer
    replica: tc.Replica

    async def push(self, x: torch.Tensor = X) -> tc.Stepped:
        """A push of the gradient at what the replica has; without the parameters after it."""
        self.replica(x).square().mean(0).sum().backward()
        stepped = await self.replica.push(self.opt, pull=False)
        assert stepped is not None
        return stepped

    async def train(self, steps: int) -> None:
        for _ in range(steps):
            await self.replica.pull()
            await self.push(-X)

    async def state(self) -> State:
        return {name: value.clone() for name, value in (await self.net.state_dict()).items()}


@asynccontextmanager
async def joined(
    owner: Owner, policy: tc.policies.Policy | None, rows: int = 2, name: str = "opt"
) -> AsyncIterator[Trainer]:
    async with tc.connect(owner.address) as ps:
        net = await ps.module(nn.Linear, 3, rows, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), name=name, lr=0.02, policy=policy)
        yield Trainer(net, opt, await net.replica())


def gradients_of(then: State) -> State:
    """The gradients that a trainer computes which has these parameters."""
    net = nn.Linear(3, len(then["bias"]))
    net.load_state_dict(then)
    names = [name for name, _ in net.named_parameters()]
    return dict(zip(names, torch.autograd.grad(net(X).square().mean(0).sum(), list(net.parameters())), strict=True))


WAYS = {
    "drained": ["restart"],
    "drained and killed": ["restart", "crash"],
    "killed": ["crash"],
    "killed after a checkpoint": ["crash"],
}
POLICIES = {
    "none": None,
    "compensated": tc.policies.Async(tc.policies.Compensate(STRENGTH)),
    "rejected": tc.policies.Async(tc.policies.Reject(STEPS)),
}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("before", [0, STEPS])
async def test_a_push_is_as_stale_as_without_a_restart(tmp_path: Path, how: str, policy: str, before: int) -> None:
    async with (
        Owner(tmp_path, durability="interval:1") as owner,
        joined(owner, POLICIES[policy]) as one,
        joined(owner, POLICIES[policy]) as other,
    ):
        await other.train(before)
        await one.replica.pull()
        then = await one.state()
        if how == "killed after a checkpoint":
            await checkpoint(owner)
        await other.train(1)
        for each in WAYS[how]:
            await getattr(owner, each)()
        await other.train(STEPS + 1)
        now = await other.state()
        stepped = await one.push()
        after = await other.state()
    assert (stepped.staleness, stepped.dropped) == (STEPS + 2, "stale" if policy == "rejected" else "")
    for name, gradient in gradients_of(then).items():
        expected = gradient * (policy != "rejected")
        if policy == "compensated" and how.startswith("killed"):  # a checkpoint has no earlier values of parameters
            expected = gradient + STRENGTH * gradient * gradient * (now[name] - then[name])
        torch.testing.assert_close(after[name], now[name] - 0.02 * expected, msg=name)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("pulled", [2, 0], ids=["while it was written", "after the restart"])
async def test_what_a_checkpoint_has_as_it_was_later_is_taken_for_nothing_else(
    tmp_path: Path, between: Callable[[Action], None], pulled: int
) -> None:
    """It reads the rows of the weight one after the other, and steps come between, with and without the policy."""
    async with (
        Owner(tmp_path, durability="interval:1") as owner,
        joined(owner, POLICIES["compensated"], 200) as one,
        joined(owner, POLICIES["compensated"], 200) as other,
        joined(owner, None, 200, "plain") as plain,
    ):
        await other.train(20)
        steps = 0

        async def step() -> None:
            nonlocal steps
            await plain.train(1)
            await other.train(1)
            steps += 2
            if steps == 2 * pulled:
                await one.replica.pull()

        between(step)
        await checkpoint(owner)
        assert steps > 10, "it was not read in parts"
        await owner.crash()
        if not pulled:
            await one.replica.pull()
        then = {name: value.clone() for name, value in one.replica.module.state_dict().items()}
        await other.train(2)
        now = await other.state()
        stepped = await one.push()
        after = await other.state()
    assert stepped.staleness == 2 + (steps - 2 * pulled) * (pulled > 0)
    for name, gradient in gradients_of(then).items():
        correction = 0 if pulled else STRENGTH * gradient * gradient * (now[name] - then[name])
        torch.testing.assert_close(after[name], now[name] - 0.02 * (gradient + correction), msg=name)
