"""What runs on Ray in the tests and uses owners: a task, actors, and a worker of Ray Train."""

from __future__ import annotations

from typing import Any

import torch

import trainer_client as tc

COUNTER = "torch.nn.Linear"


def stepped(name: str) -> dict[str, int]:
    """Makes a step on a layer of that name; the versions after it, by owner."""
    with tc.connect(directory="ray:ps") as ps:
        net = ps.module("torch.nn.Linear", 2, 2, name=name, seed=1)
        opt = ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        with ps.context() as ctx:
            return dict(ctx.backward(net(torch.ones(1, 2)).sum(), step=opt))


class Blocking:
    """An actor whose methods block."""

    def step(self, name: str) -> dict[str, int]:
        """As `stepped`."""
        return stepped(name)


class Asynchronous:
    """An actor with an event loop."""

    async def owners(self) -> list[str]:
        """The owners that a client finds."""
        async with tc.connect(directory="ray:ps") as ps:
            return list(ps.owners)

    async def some(self) -> list[str]:
        """The same with the name of one."""
        async with tc.connect("ps1", directory="ray:ps") as ps:
            return list(ps.owners)


def train_worker(config: dict[str, Any]) -> None:
    """The loop of a worker of Ray Train."""
    from ray import train  # a worker has it, and the process of the tests need not

    for _ in range(config["steps"]):
        stepped("train")
    train.report({"done": config["steps"]})
