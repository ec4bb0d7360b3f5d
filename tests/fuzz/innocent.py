"""A trainer that minds its own business while the owner is fuzzed: `python -m tests.fuzz.innocent ADDRESS`.

It trains over each transport in turns. For each line on its standard input it makes a pass, and prints its loss as a
hexadecimal number, with the seconds that the slowest call of the pass has taken.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import torch
from torch import nn, optim

import trainer_client as tc
from tests.transports import TRANSPORTS


class Training:
    """What one of the sessions trains, without names."""

    def __init__(self, ps: tc.Client, seed: int) -> None:
        self._ps = ps
        self._inputs = torch.Generator().manual_seed(seed)
        self._seed = seed

    async def begin(self) -> None:
        """Makes the objects."""
        ps = self._ps
        self._net = await ps.module("tests.fuzz.hosted.Net", 4, 2, seed=self._seed)
        self._opt = await ps.optimizer(optim.Adam, self._net.parameters(), lr=0.01)
        table = f"innocent {self._seed} {ps.trainer_name}"
        self._items = await ps.table(table, 4, optimizer=tc.tables.LazyAdam(lr=0.01), seed=self._seed)

    async def one_pass(self) -> float:
        """The loss of a pass."""
        x = torch.randn(8, 4, generator=self._inputs)
        ids = torch.randint(500, (8,), generator=self._inputs)
        async with self._ps.context() as ctx:
            rows = await self._items(ids)
            loss = nn.functional.mse_loss(await self._net(rows + x), x[:, :2])
            await ctx.backward(loss, step=[self._opt, self._items.optimizer])
        return loss.item()


async def run(address: str) -> None:
    torch.set_num_threads(1)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with AsyncExitStack() as stack:
        trainings = []
        for seed, more in enumerate(TRANSPORTS.values()):
            options: dict[str, Any] = dict(more)
            ps = await stack.enter_async_context(tc.connect(address, **options))
            trainings.append(Training(ps, seed))
            await trainings[-1].begin()
        print(json.dumps({"ready": True}), flush=True)
        count = 0
        while await reader.readline():
            began = time.perf_counter()
            try:
                loss = await trainings[count % len(trainings)].one_pass()
            except Exception as error:
                print(json.dumps({"failed": repr(error)}), flush=True)
                return
            print(json.dumps({"loss": loss.hex(), "seconds": time.perf_counter() - began}), flush=True)
            count += 1


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
