"""Starts trainers as processes, and follows them until they end."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field

from examples.digits.chaos import REPEATED, Kill, watch
from examples.digits.log import ChildFailed, Log
from examples.digits.messages import Finish, Message, Start, Step, decode
from examples.digits.owner import Owner
from examples.digits.progress import Display
from examples.digits.settings import Settings
from examples.jobs import environment
from ps_service.launch.lines import Lines
from ps_service.launch.processes import Processes
from ps_service.launch.trainers import environment_of


@dataclass
class Training:
    """The messages of the trainers, and what happened to the owner. Times are those of `time.perf_counter`."""

    losses: list[list[float]]
    """One list per trainer, by rank."""
    times: list[list[float]]
    """When each of these steps was told."""
    began: float = field(default=float("inf"))
    ended: float = field(default=float("-inf"))
    kills: list[Kill] = field(default_factory=list)
    repeated: int = 0
    """Passes that trainers have run again."""
    version: int = 0
    """Steps that the owner's optimizer has applied in the end."""

    def take(self, message: Message) -> None:
        """Adds one message."""
        match message:
            case Start():
                self.began = min(self.began, time.perf_counter())
            case Step(rank, _, loss):
                self.losses[rank].append(loss)
                self.times[rank].append(time.perf_counter())
            case Finish():
                self.ended = max(self.ended, time.perf_counter())

    @property
    def seconds(self) -> float:
        """Seconds from the first trainer's start to the last one's end."""
        return self.ended - self.began


class Trainer:
    """The process of a trainer."""

    def __init__(self, processes: Processes, rank: int, owner: Owner, settings: Settings) -> None:
        name = f"trainer-{rank}"
        self.log = Log(settings.out, name)
        self.lines = Lines()
        variables = environment_of(rank, settings.trainers, [owner.address], environment=environment())
        # A trainer only distorts digits and computes a loss. One thread suffices, and leaves the cores to the owner.
        variables["OMP_NUM_THREADS"] = "1"
        self.process = processes.start(name, _command(settings), variables, self.lines.take, self.log.take)
        self.process.when_ended(self.lines.end)


async def train(processes: Processes, owner: Owner, settings: Settings, display: Display) -> Training:
    """Starts the trainers and waits until all have finished; `settings.chaos` has the owner killed meanwhile.

    Raises:
        ChildFailed: a trainer failed, or the owner ended by itself meanwhile.
    """
    training = Training([[] for _ in range(settings.trainers)], [[] for _ in range(settings.trainers)])
    begun, over = asyncio.Event(), asyncio.Event()

    async def follow(trainer: Trainer) -> None:
        async for line in trainer.lines:
            try:
                message = decode(line)
            except ValueError as error:
                raise trainer.log.failed(trainer.process.name, f"said what is {error}") from None
            training.take(message)
            display.show(message)
            begun.set()
        if await trainer.process.wait():
            raise trainer.log.ended(trainer.process)

    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch(owner, begun, over, settings.chaos, settings.kills))
            trainers = [Trainer(processes, rank, owner, settings) for rank in range(settings.trainers)]
            for trainer in trainers:
                display.say(f"{trainer.process.name} starts (process {trainer.process.pid})")
            await asyncio.wait([group.create_task(follow(trainer)) for trainer in trainers])
            over.set()
            training.kills = await watching
    except* ChildFailed as failures:
        raise failures.exceptions[0] from None
    training.repeated = sum(trainer.log.read().count(REPEATED) for trainer in trainers)
    return training


def _command(settings: Settings) -> list[str]:
    command = [sys.executable, "-m", "examples.digits.trainer", "--seed", str(settings.seed)]
    command += ["--batch-size", str(settings.batch_size), "--lr", str(settings.lr)]
    command += ["--momentum", str(settings.momentum)]
    if settings.epochs is not None:
        command += ["--epochs", str(settings.epochs)]
    if settings.data is not None:
        command += ["--data", str(settings.data.resolve())]
    if settings.sync:
        command.append("--sync")
    return command
