"""Runs the modes one after the other, with the same trainers, and measures each."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import trainer_client as tc
from examples.mpi_ps import model, trainer
from examples.mpi_ps.model import Net, test
from examples.mpi_ps.relay import Relay
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server

if TYPE_CHECKING:
    from torch import Tensor

    from examples.mpi_ps.settings import Settings

_PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class Point:
    """The model at one moment of a training.

    Attributes:
        seconds: Since its begin.
        sent: Bytes that the trainers have sent.
        loss: The mean loss over the test digits.
        accuracy: The part of them that is recognized.
    """

    seconds: float
    sent: int
    loss: float
    accuracy: float


@dataclass
class Run:
    """A training in one mode.

    Attributes:
        name: The mode.
        points: The model, from the begin to the end.
        received: Bytes that the trainers have received.
        parameters: The parameters in the end, by name.
    """

    name: str
    points: list[Point] = field(default_factory=list)
    received: int = 0
    parameters: dict[str, Tensor] = field(default_factory=dict)


class Trainers:
    """The trainer processes.

    Args:
        settings: How many, and what they do.
        address: Where they reach the owner.
    """

    def __init__(self, settings: Settings, address: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._orders: list[Connection] = []
        self._processes = []
        for rank in range(settings.trainers):
            here, there = context.Pipe()
            process = context.Process(target=trainer.run, args=(rank, settings, address, there), daemon=True)
            process.start()
            there.close()
            self._orders.append(here)
            self._processes.append(process)

    async def tell(self, what: str | None) -> None:
        """Sends an order to all of them."""
        for each in self._orders:
            each.send(what)

    async def hear(self) -> None:
        """Waits for an answer of all of them.

        Raises:
            EOFError: One of them has ended.
        """
        for each in self._orders:
            await asyncio.to_thread(each.recv)

    def end(self) -> None:
        """Ends those that still run."""
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


async def train(settings: Settings, names: list[str]) -> AsyncIterator[Run]:
    """Trains in each of these modes.

    Raises:
        PsError: The owner has failed.
        EOFError: A trainer has failed.
    """
    async with _owner() as server, Relay(server.address).running() as relay, tc.connect(server.address) as ps:
        trainers = Trainers(settings, relay.address)
        try:
            for name in names:
                yield await _run(ps, settings, relay, trainers, name)
            await trainers.tell(None)
        finally:
            await asyncio.to_thread(trainers.end)


@asynccontextmanager
async def _owner() -> AsyncIterator[Server]:
    async with Server(Engine("ps0", AllowList([model]))) as server:
        yield server


async def _run(ps: tc.Client, settings: Settings, relay: Relay, trainers: Trainers, name: str) -> Run:
    run = Run(name)
    net = await ps.module(Net, name=name, seed=settings.seed)
    replica = await net.replica()
    await trainers.tell(name)
    await trainers.hear()
    began, sent, received = time.monotonic(), relay.to_owner, relay.to_trainers

    def measure() -> None:
        run.points.append(Point(time.monotonic() - began, relay.to_owner - sent, *test(replica)))

    measure()
    await trainers.tell("go")
    done = asyncio.create_task(trainers.hear())
    while not done.done():
        await asyncio.wait([done], timeout=_PAUSE_SECONDS)
        await replica.pull()
        measure()
    await done
    run.received = relay.to_trainers - received
    run.parameters = dict(await net.state_dict())
    return run
