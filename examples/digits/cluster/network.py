"""A trainer's handles to the parts of the network, and to the optimizer over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

import trainer_client as tc
from examples.digits.cluster.layers import cut
from examples.digits.cluster.settings import Settings
from examples.digits.data import Part

EVALUATION_BATCH = 128
# Whichever trainer makes the network, its initial values are the same.
SEED = 28


@dataclass(frozen=True)
class Network:
    """Parts of a network on several owners, shared with all trainers that use the same names."""

    ps: tc.Client
    parts: Sequence[tc.RemoteModule]
    """One per owner, in the order of the forward."""
    optimizer: tc.DistributedOptimizer
    optimizer_name: str

    @classmethod
    async def attach(cls, ps: tc.Client, settings: Settings) -> Self:
        """Attaches to the network, and makes it if it does not exist. With other owners it is another network.

        Raises:
            tc.errors.NameConflictError: It was made with other settings.
            tc.PsError: An owner cannot be reached.
        """
        network = f"{settings.model}@{'+'.join(settings.owners)}"
        places = zip(settings.owners, cut(len(settings.owners)), strict=True)
        making = [
            ps.module(
                "examples.digits.cluster.Layers",
                first,
                end,
                name=f"{network}.layers{first}-{end - 1}",
                owner=owner,
                seed=SEED,
            )
            for owner, (first, end) in places
        ]
        parts = await asyncio.gather(*making)
        name = f"{network}.optimizer"
        parameters = [parameter for part in parts for parameter in part.parameters()]
        optimizer = await ps.optimizer(
            torch.optim.SGD, parameters, name=name, lr=settings.lr, momentum=settings.momentum
        )
        return cls(ps, parts, optimizer, name)

    async def learn(self, batch: Part) -> tuple[float, dict[str, int]]:
        """Takes one step.

        Returns:
            The loss, and the version that the optimizer has on each owner after the step.

        Raises:
            tc.errors.ContextLostError: An owner has lost the pass, and has not applied its step.
            tc.errors.SessionLostError, tc.errors.StaleHandleError: An owner has ended the session: attach again.
        """
        async with self.ps.context() as ctx:
            loss = F.nll_loss(await self._read(batch.images), batch.labels)
            return loss.item(), await ctx.backward(loss, step=self.optimizer)

    async def versions(self) -> dict[str, int]:
        """The number of steps of all trainers together so far, by owner."""
        owners = list(self.optimizer.remotes)
        statuses = await asyncio.gather(*map(self.ps.status, owners))
        return {
            owner: next(each.version for each in status.optimizers if each.name == self.optimizer_name)
            for owner, status in zip(owners, statuses, strict=True)
        }

    async def accuracy(self, digits: Part) -> float:
        """The share of digits that are classified correctly, without dropout and without a context."""
        for part in self.parts:
            part.eval()
        correct = 0
        with torch.no_grad():
            for start in range(0, len(digits), EVALUATION_BATCH):
                batch = digits[start : start + EVALUATION_BATCH]
                correct += int(((await self._read(batch.images)).argmax(dim=1) == batch.labels).sum())
        return correct / len(digits)

    async def _read(self, images: Tensor) -> Tensor:
        x = images
        for part in self.parts:
            x = await part(x)
        return x
