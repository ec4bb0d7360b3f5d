"""Runs the modes one after the other, with the same trainers, and measures each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trainer_client as tc
from examples.jobs import Trainers, arguments_of
from examples.mpi_ps import model
from examples.mpi_ps.model import Net, test
from examples.mpi_ps.relay import Relay
from examples.mpi_ps.trainer import TEAM
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.launch.processes import Processes
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


async def train(settings: Settings, names: list[str]) -> AsyncIterator[Run]:
    """Trains in each of these modes.

    Raises:
        PsError: The owner or a trainer has failed.
        ProcessFailed: A trainer has ended with an error.
    """
    async with (
        _owner() as server,
        Relay(server.address).running() as relay,
        tc.connect(server.address) as ps,
        Processes() as processes,
    ):
        command = ["examples.mpi_ps.trainer", *arguments_of(settings)]
        trainers = Trainers(processes, [relay.address], settings.trainers, command)
        async with await ps.communicator(TEAM, settings.trainers + 1, rank=0) as team:
            for name in names:
                yield await _run(ps, settings, relay, team, name)
            await team.broadcast(None)
        await trainers.finish()


@asynccontextmanager
async def _owner() -> AsyncIterator[Server]:
    async with Server(Engine("ps0", AllowList([model]))) as server:
        yield server


async def _run(ps: tc.Client, settings: Settings, relay: Relay, team: tc.Communicator, name: str) -> Run:
    run = Run(name)
    net = await ps.module(Net, name=name, seed=settings.seed)
    replica = await net.replica()
    await team.broadcast(name)
    await team.barrier()  # all trainers are ready
    began, sent, received = time.monotonic(), relay.to_owner, relay.to_trainers

    def measure() -> None:
        run.points.append(Point(time.monotonic() - began, relay.to_owner - sent, *test(replica)))

    measure()
    await team.barrier()
    done = asyncio.ensure_future(team.barrier(timeout=None))
    while not done.done():
        await asyncio.wait([done], timeout=_PAUSE_SECONDS)
        await replica.pull()
        measure()
    await done
    run.received = relay.to_trainers - received
    run.parameters = dict(await net.state_dict())
    return run
