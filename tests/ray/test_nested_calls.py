"""Hosted code on one owner on Ray calls another, also after that has moved."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")

import torch
from torch.nn import functional as F

import ps_service.ray
import trainer_client as tc
from tests.hosted_models import Delegating
from tests.ray.machines import LABELS, Machines, waited

INPUT = torch.tensor([[0.5, -1.0, 2.0]])


async def test_hosted_code_calls_an_owner_that_moves(machines: Machines, tmp_path: Path) -> None:
    cluster = ps_service.ray.start(
        "ps", 2, ["tests.hosted_models"], tmp_path, labels=LABELS, flags=["--no-compile-tables", "--drain-seconds", "2"]
    )
    try:
        before = {each.name: each for each in cluster.status()}
        async with tc.connect(directory="ray:ps") as ps:
            outer = await ps.module("tests.hosted_models.Delegating", name="outer", owner="ps0")
            inner = await ps.module("torch.nn.Linear", 3, 3, name="inner", owner="ps1", seed=1)
            opts = [await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1) for net in (outer, inner)]
            losses = []

            async def step(ctx: tc.Context) -> float:
                loss = F.mse_loss(await outer(INPUT, inner), INPUT)
                await ctx.backward(loss, step=opts)
                return loss.item()

            losses.append(await ps.run(step))
            machines.drain(before["ps1"].node)
            waited(lambda: cluster.status()[1].state == "serving" and cluster.status()[1].node != before["ps1"].node)
            losses.append(await ps.run(step))
        after = {each.name: each for each in cluster.status()}
        assert after["ps1"].host != before["ps1"].host and after["ps0"] == before["ps0"]
        # Each of the two tells where the other is.
        for each in after.values():
            async with tc.connect(directory=[each.address]) as ps:
                assert ps.owners == ["ps0", "ps1"]
                assert [ps.sessions[name].address for name in ps.owners] == [each.address for each in after.values()]
    finally:
        cluster.down()
    assert losses == local(2)


def local(steps: int) -> list[float]:
    """The same with modules of this process."""
    outer = Delegating()
    torch.manual_seed(1)
    inner = torch.nn.Linear(3, 3)
    opt = torch.optim.SGD([*outer.parameters(), *inner.parameters()], lr=0.1)
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        loss = F.mse_loss(outer.scale * (INPUT + inner(INPUT)), INPUT)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses
