"""Starts an owner and its trainers as processes, and follows them until they end."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

import examples
from examples.digits.messages import Finish, Message, Start, Step, decode
from examples.digits.process import Child, ChildFailed, Children
from examples.digits.progress import Display
from examples.digits.settings import Settings

OWNER = "ps0"
START_SECONDS = 60.0
_ROOT = Path(examples.__file__).resolve().parents[1]
_READY = re.compile(rf"{OWNER} is serving on (\S+)")


@dataclass
class Training:
    """The messages of the trainers."""

    losses: list[list[float]]
    """One list per trainer, by rank."""
    began: float = field(default=float("inf"))
    ended: float = field(default=float("-inf"))

    def take(self, message: Message) -> None:
        """Adds one message."""
        match message:
            case Start():
                self.began = min(self.began, time.perf_counter())
            case Step(rank, _, loss):
                self.losses[rank].append(loss)
            case Finish():
                self.ended = max(self.ended, time.perf_counter())

    @property
    def seconds(self) -> float:
        """Seconds from the first trainer's start to the last one's end."""
        return self.ended - self.began


async def start_owner(children: Children, settings: Settings, display: Display) -> tuple[Child, str]:
    """Starts the owner and waits until it serves.

    Returns:
        The process and its ``host:port``.

    Raises:
        ChildFailed: it ended, or was not ready within a minute.
    """
    command = [*_service(), "serve", "--name", OWNER, "--listen", "127.0.0.1:0"]
    command += ["--import", "examples.digits", "--device", settings.device]
    # The trainers' passes run concurrently; more threads than cores would slow all of them down.
    command += ["--torch-threads", str(max(1, torch.get_num_threads() // settings.trainers))]
    owner = await children.start(OWNER, command, _environment())
    display.say(f"{OWNER} starts (process {owner.pid})")
    try:
        async with asyncio.timeout(START_SECONDS):
            async for line in owner.lines():
                if match := _READY.search(line):
                    return owner, match[1]
    except TimeoutError:
        raise owner.failed(f"was not ready after {START_SECONDS:.0f} seconds") from None
    raise owner.failed(f"ended with code {await owner.wait()} before it was ready")


async def train(children: Children, owner: Child, address: str, settings: Settings, display: Display) -> Training:
    """Starts the trainers and waits until all have finished.

    Raises:
        ChildFailed: a trainer failed, or the owner ended meanwhile.
    """
    training = Training([[] for _ in range(settings.trainers)])

    async def follow(trainer: Child) -> None:
        async for line in trainer.lines():
            try:
                message = decode(line)
            except ValueError as error:
                raise trainer.failed(f"said what is {error}") from None
            training.take(message)
            display.show(message)
        if code := await trainer.wait():
            raise trainer.failed(f"ended with code {code}")

    async def watch() -> None:
        # Reads to the end, because a full pipe would block the owner.
        async for _ in owner.lines():
            pass
        raise owner.failed(f"ended with code {await owner.wait()} during the training")

    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            trainers = [await _start_trainer(children, rank, address, settings) for rank in range(settings.trainers)]
            for trainer in trainers:
                display.say(f"{trainer.name} starts (process {trainer.pid})")
            await asyncio.wait([group.create_task(follow(trainer)) for trainer in trainers])
            watching.cancel()
    except* ChildFailed as failures:
        raise failures.exceptions[0] from None
    return training


async def _start_trainer(children: Children, rank: int, address: str, settings: Settings) -> Child:
    command = [sys.executable, "-m", "examples.digits.trainer", "--address", address]
    command += ["--rank", str(rank), "--trainers", str(settings.trainers), "--seed", str(settings.seed)]
    command += ["--batch-size", str(settings.batch_size), "--lr", str(settings.lr)]
    command += ["--momentum", str(settings.momentum)]
    if settings.epochs is not None:
        command += ["--epochs", str(settings.epochs)]
    if settings.data is not None:
        command += ["--data", str(settings.data.resolve())]
    if settings.sync:
        command.append("--sync")
    # A trainer only distorts digits and computes a loss. One thread suffices, and leaves the cores to the owner.
    return await children.start(f"trainer-{rank}", command, _environment() | {"OMP_NUM_THREADS": "1"})


def _service() -> list[str]:
    script = Path(sys.executable).with_name("ps-service")
    return [str(script)] if script.exists() else [sys.executable, "-m", "ps_service"]


def _environment() -> dict[str, str]:
    # So that children find the package whatever directory the example was started from.
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    return dict(os.environ) | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
