"""The owner's process, which can be killed and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch

from examples.digits.log import ChildFailed, Log
from examples.digits.progress import Display
from examples.digits.settings import Settings
from examples.jobs import environment
from ps_service.launch import owner as launched
from ps_service.launch.process import ProcessFailed
from ps_service.launch.processes import Processes

NAME = "ps0"
START_SECONDS = 60.0
LOG_BYTES = 256 << 20
"""Of the log until a checkpoint is written: what a start has to apply again at most."""


class Owner:
    """The owner's process.

    Args:
        processes: Starts it.
        settings: The device, and how many trainers there are.
        display: Shows its starts.
        data: Its data directory, for one that is killed and started again: then it also has a log.

    Attributes:
        process: The same as other programs have it.
    """

    def __init__(self, processes: Processes, settings: Settings, display: Display, data: Path | None = None) -> None:
        self._display = display
        self._log = Log(settings.out, NAME)
        flags = ["--import", "examples.digits", "--device", settings.device, "--no-compile-tables"]
        # The trainers' passes run concurrently; more threads than cores would slow all of them down.
        flags += ["--torch-threads", str(max(1, torch.get_num_threads() // settings.trainers))]
        if data is not None:
            flags += _durable(data)
        self.process = launched.Owner(processes, NAME, flags, environment=environment(), errors=self._log.take)

    @property
    def address(self) -> str:
        """``host:port``, the same after every start."""
        return self.process.address

    async def start(self) -> None:
        """Starts it, for the first time or after a kill, and waits until it serves.

        Raises:
            ChildFailed: It ended, or was not ready within a minute.
        """
        try:
            async with asyncio.timeout(START_SECONDS):
                await self.process.start(lambda begun: self._display.say(f"{NAME} starts (process {begun.pid})"))
        except TimeoutError:
            raise self._log.failed(NAME, f"was not ready after {START_SECONDS:.0f} seconds") from None
        except ProcessFailed:
            raise self._log.ended(self.process.process, "before it was ready") from None

    async def ended(self) -> ChildFailed:
        """Waits until it has ended by itself, and returns the error that says so."""
        await self.process.failed()
        return self._log.ended(self.process.process, "during the training")

    async def kill(self) -> None:
        """Kills it with SIGKILL."""
        self.process.process.kill()
        await self.process.process.wait()

    async def end(self) -> None:
        """Lets it drain and end.

        Raises:
            ChildFailed: It failed to.
        """
        try:
            await self.process.end(grace_seconds=10)
        except ProcessFailed:
            raise self._log.ended(self.process.process, "when it was asked to drain") from None


def _durable(data: Path) -> Sequence[str]:
    return ["--data-dir", str(data.resolve()), "--durability", "interval:1", "--log-bytes", str(LOG_BYTES)]
