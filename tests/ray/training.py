"""Trainers of owners on Ray: each has a layer on one and a table over all, and trains batch after batch."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any, Final

import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.server import Server
from tests.allowed import allowed

PAUSE: Final = 0.02
"""Seconds between two steps, which leave the processors to what is measured."""


def batch(i: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and ids of a step."""
    generator = torch.Generator().manual_seed(i)
    return torch.randn(8, 4, generator=generator), torch.randint(200, (8,), generator=generator)


class Model:
    """A layer on one owner, that of `a` on ps0 and that of `b` on ps1, and a table over both."""

    def __init__(self, ps: tc.Client, name: str) -> None:
        self.ps = ps
        self.name = name
        self.attempts = 0

    async def attach(self) -> None:
        """Makes what is trained, or attaches to it."""
        names = ["ps0", "ps1"]
        owner = names["ab".index(self.name)]
        self.net = await self.ps.module("torch.nn.Linear", 4, 4, name=f"net-{self.name}", owner=owner, seed=1)
        self.opt = await self.ps.optimizer(torch.optim.Adam, self.net.parameters(), lr=0.01)
        optimizer = tc.tables.Adagrad(lr=0.05)
        self.table = await self.ps.table(f"items-{self.name}", 4, optimizer=optimizer, owners=names, seed=2)

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

    def __init__(self, name: str, directory: str = "ray:ps") -> None:
        self.name = name
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

    def has_made(self, steps: int) -> bool:
        """Whether it has made so many steps; raises what has ended it."""
        if self.errors:
            raise self.errors[0]
        return self.steps >= steps

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
            model = Model(ps, self.name)
            await model.attach()
            while not self._stop.is_set():
                await model.step(self.steps)
                self.ended_at.append(time.monotonic())
                self.repeated = model.attempts - self.steps
                await asyncio.sleep(PAUSE)
            self.state = await model.state()


class Trainers:
    """Two trainers, and what both have seen."""

    def __init__(self) -> None:
        self.each: Final = [Trainer("a"), Trainer("b")]

    @property
    def repeated(self) -> int:
        """Passes that were lost and made again."""
        return sum(each.repeated for each in self.each)

    @property
    def steps(self) -> list[int]:
        """Steps of each that were acknowledged."""
        return [each.steps for each in self.each]

    def have_made(self, steps: Sequence[int]) -> bool:
        """Whether they have made so many steps; raises what has ended one of them."""
        return all([each.has_made(number) for each, number in zip(self.each, steps, strict=True)])

    def longest_pause(self, since: float) -> float:
        """The longest time between two steps of one of them, after a moment."""
        return max(each.longest_pause(since) for each in self.each)

    def last_connected(self, since: float) -> float:
        """Seconds from a moment until both could reach all owners again; 0 if they always could."""
        return max(each.last_connected(since) for each in self.each)

    def stop(self) -> None:
        """Ends both."""
        for each in self.each:
            each.stop()

    async def check(self) -> None:
        """Fails unless owners have what the same steps give on owners that nothing happens to, bit by bit."""
        async with AsyncExitStack() as stack:
            servers = [Server(Engine(name, allowed()), direct_port=0) for name in ("ps0", "ps1")]
            addresses = [(await stack.enter_async_context(server)).address for server in servers]
            for each in self.each:
                assert not each.errors
                assert each.state["steps"] == [each.steps] * 2, "no step is lost or applied twice"
                expected = await undisturbed(each.name, each.steps, *addresses)
                rows, wanted = each.state["rows"], expected["rows"]
                different = sorted(id for id in rows.keys() | wanted.keys() if rows.get(id) != wanted.get(id))
                assert not different, f"rows {different} of trainer {each.name!r} are others"
                assert each.state == expected


async def undisturbed(name: str, steps: int, *addresses: str) -> dict[str, Any]:
    """What owners have after so many steps with nothing in between."""
    async with tc.connect(*addresses) as ps:
        model = Model(ps, name)
        await model.attach()
        for i in range(steps):
            await model.step(i)
        return await model.state()
