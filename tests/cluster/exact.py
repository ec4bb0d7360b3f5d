"""Trainers of one layer whose updates are exact, so that the result does not depend on their order."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

import torch
from torch import Tensor, nn

import trainer_client as tc

WIDTH: Final = 1024
LR: Final = 2.0**-6
NAME: Final = "exact"
PATIENCE: Final = 180.0


class Crew:
    """Some trainers at once. Whole numbers are their data, so float32 has each sum of gradients without rounding.

    Args:
        address: The owner.
        size: Number of trainers.
        tls: Their certificates.

    Attributes:
        acknowledged: Steps that they were told of.
    """

    def __init__(self, address: str, size: int, tls: tc.TLS) -> None:
        self.acknowledged = 0
        self._taken = asyncio.Semaphore(0)
        self._address = address
        self._tls = tls
        self._size = size
        self._generators = [torch.Generator().manual_seed(rank) for rank in range(size)]
        self._expected = {"weight": torch.zeros(WIDTH, WIDTH), "bias": torch.zeros(WIDTH)}

    async def __aenter__(self) -> Self:
        patient = {"timeout": PATIENCE, "connect_timeout": PATIENCE, "reconnect_timeout": PATIENCE}
        self._clients = [
            await tc.connect(self._address, tls=self._tls, **patient).__aenter__() for _ in range(self._size)
        ]
        self._nets = [await ps.module(nn.Linear, WIDTH, WIDTH, name=NAME) for ps in self._clients]
        await self._nets[0].load_state_dict(self._expected)
        self._optimizers = [
            await ps.optimizer(torch.optim.SGD, net.parameters(), lr=LR)
            for ps, net in zip(self._clients, self._nets, strict=True)
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._clients:
            await each.close()

    async def train(self, steps: int) -> None:
        """Takes so many steps with each trainer. Raises an `ExceptionGroup` if steps fail; nobody else's are broken
        off, so that all know which have been made."""
        ended = await asyncio.gather(*(self._train(rank, steps) for rank in range(self._size)), return_exceptions=True)
        if errors := [each for each in ended if isinstance(each, Exception)]:
            raise ExceptionGroup("steps have failed", errors)

    async def has_taken(self, more: int) -> None:
        """Waits until so many more steps were taken."""
        self._taken = asyncio.Semaphore(0)
        for _ in range(more):
            await self._taken.acquire()

    async def step(self) -> None:
        """Takes one step with the first trainer. Raises `StorageError` if the owner refuses it."""
        await self._train(0, 1)

    async def _train(self, rank: int, steps: int) -> None:
        net, optimizer = self._nets[rank], self._optimizers[rank]

        async def step(ctx: tc.Context, x: Tensor, weights: Tensor) -> None:
            await ctx.backward(((await net(x)) * weights).sum(), step=optimizer)

        for _ in range(steps):
            x, weights = torch.randint(-2, 3, (2, 4, WIDTH), generator=self._generators[rank]).float()
            await self._clients[rank].run(step, x, weights)
            self._expected["weight"] -= LR * (weights.T @ x)
            self._expected["bias"] -= LR * weights.sum(0)
            self.acknowledged += 1
            self._taken.release()

    async def forward(self) -> Tensor:
        """What the layer makes of ones."""
        with torch.no_grad():
            return await self._nets[0](torch.ones(1, WIDTH))

    async def check(self) -> None:
        """Each acknowledged step is there once: bit by bit in the parameters, and in the version."""
        state = await self._nets[0].state_dict()
        assert state.keys() == self._expected.keys()
        for name, expected in self._expected.items():
            assert torch.equal(state[name], expected), f"{name} differs from the sum of the acknowledged steps"
        (optimizer,) = (await self._clients[0].status()).optimizers
        assert optimizer.version == self.acknowledged
