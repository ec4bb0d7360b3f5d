"""A trainer of owners on Ray: a layer on one and a table over all, batch after batch, in a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise
from typing import Any, Final

import torch

import trainer_client as tc

PAUSE: Final = 0.02
"""Seconds between two steps, which leave the processors to what is measured."""


def batch(i: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and ids of a step."""
    generator = torch.Generator().manual_seed(i)
    return torch.randn(8, 4, generator=generator), torch.randint(200, (8,), generator=generator)


class Model:
    """A layer on the first owner, and a table over all owners."""

    def __init__(self, ps: tc.Client) -> None:
        self.ps = ps
        self.attempts = 0

    async def attach(self) -> None:
        """Makes what is trained, or attaches to it."""
        names = [each for each in self.ps.owners if each in ("ps0", "ps1")]
        self.net = await self.ps.module("torch.nn.Linear", 4, 4, name="net", owner=names[0], seed=1)
        self.opt = await self.ps.optimizer(torch.optim.Adam, self.net.parameters(), lr=0.01)
        optimizer = tc.tables.Adagrad(lr=0.05)
        self.table = await self.ps.table("items", 4, optimizer=optimizer, owners=names, seed=2)

    async def step(self, i: int) -> None:
        """One pass with its step, which is repeated if it is lost."""
        inputs, ids = batch(i)

        async def one(ctx: tc.Context) -> None:
            self.attempts += 1
            loss = (await self.net(inputs) + await self.table(ids)).square().sum()
            await ctx.backward(loss, step=[self.opt, self.table.optimizer])

        await self.ps.run(one)

    async def state(self) -> dict[str, Any]:
        """All that is trained, and the versions of the optimizers, as plain values that can be compared."""
        rows = {}
        async for block in self.table.blocks():
            kept = [block[name].tolist() for name in sorted(block) if name != "ids" and not name.startswith("seen")]
            rows.update(zip(block["ids"].tolist(), zip(*kept, strict=True), strict=True))
        layer = {name: value.tolist() for name, value in (await self.net.state_dict()).items()}
        adam = await self.opt.state_dict()
        steps = [float(each["step"]) for each in adam["state"].values()]
        return {"layer": layer, "rows": rows, "steps": steps}


class Trainer:
    """Trains in a thread until it is told to stop."""

    def __init__(self, directory: str = "ray:ps") -> None:
        self._directory = directory
        self._stop = threading.Event()
        self.ended_at: list[float] = []
        self.connected_at: list[float] = []
        self.errors: list[BaseException] = []
        self.repeated = 0
        self.state: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def steps(self) -> int:
        """Steps that were acknowledged."""
        return len(self.ended_at)

    def longest_pause(self, since: float) -> float:
        """The longest time between two steps after a moment."""
        times = [since, *(each for each in self.ended_at if each > since)]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def stop(self) -> None:
        """Ends after the next step; then `state` is what the owners have."""
        self._stop.set()
        self._thread.join()

    def last_connected(self, since: float) -> float:
        """Seconds from a moment until all owners could be reached again; 0 if they always could."""
        return max((at - since for at in self.connected_at if at > since), default=0.0)

    def _note(self, state: tc.ConnectionState) -> None:
        if state.state == "connected":
            self.connected_at.append(time.monotonic())

    def _run(self) -> None:
        try:
            asyncio.run(self._train())
        except BaseException as error:
            self.errors.append(error)

    async def _train(self) -> None:
        async with tc.connect(directory=self._directory, on_state=self._note) as ps:
            model = Model(ps)
            await model.attach()
            while not self._stop.is_set():
                await model.step(self.steps)
                self.ended_at.append(time.monotonic())
                self.repeated = model.attempts - self.steps
                await asyncio.sleep(PAUSE)
            self.state = await model.state()


async def undisturbed(steps: int, *addresses: str) -> dict[str, Any]:
    """What owners have after so many steps with nothing in between."""
    async with tc.connect(*addresses) as ps:
        model = Model(ps)
        await model.attach()
        for i in range(steps):
            await model.step(i)
        return await model.state()
