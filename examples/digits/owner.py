"""The owner's process, which can be killed and started again."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from examples.digits.process import Child, ChildFailed, Children, environment
from examples.digits.progress import Display
from examples.digits.settings import Settings

NAME = "ps0"
START_SECONDS = 60.0
LOG_BYTES = 256 << 20
"""Of the log until a checkpoint is written: what a start has to apply again at most."""

_READY = re.compile(rf"{NAME} is serving on (\S+)")


class Owner:
    """The owner's process.

    Args:
        children: Starts it.
        settings: The device, and how many trainers there are.
        display: Shows its starts.
        data: Its data directory, for one that is killed and started again: then it also has a log.

    Attributes:
        address: ``host:port`` once it serves, the same after every start.
    """

    def __init__(self, children: Children, settings: Settings, display: Display, data: Path | None = None) -> None:
        self._children = children
        self._display = display
        # Nobody else gets its port while it is down.
        self._port = None if data is None else _reserved()
        self.address = "127.0.0.1:0" if self._port is None else f"127.0.0.1:{self._port.getsockname()[1]}"
        self._command = [*_service(), "serve", "--name", NAME, "--listen", self.address]
        self._command += ["--import", "examples.digits", "--device", settings.device, "--no-compile-tables"]
        # The trainers' passes run concurrently; more threads than cores would slow all of them down.
        self._command += ["--torch-threads", str(max(1, torch.get_num_threads() // settings.trainers))]
        if data is not None:
            self._command += _durable(data)
        self._child: Child | None = None

    async def start(self) -> None:
        """Starts it, for the first time or after a kill, and waits until it serves.

        Raises:
            ChildFailed: It ended, or was not ready within a minute.
        """
        child = await self._children.start(NAME, self._command, environment(), again=self._child is not None)
        self._child = child
        self._display.say(f"{NAME} starts (process {child.pid})")
        try:
            async with asyncio.timeout(START_SECONDS):
                async for line in child.lines():
                    if match := _READY.search(line):
                        self.address = match[1]
                        return
        except TimeoutError:
            raise child.failed(f"was not ready after {START_SECONDS:.0f} seconds") from None
        raise child.failed(f"ended with code {await child.wait()} before it was ready")

    async def ended(self) -> ChildFailed:
        """Waits until it has ended by itself, and returns the error that says so."""
        # Reads to the end, because a full pipe would block the owner.
        async for _ in self._running.lines():
            pass
        return self._running.failed(f"ended with code {await self._running.wait()} during the training")

    async def kill(self) -> None:
        """Kills it with SIGKILL."""
        self._running.kill()
        await self._running.wait()

    async def end(self) -> None:
        """Lets it drain and end.

        Raises:
            ChildFailed: It failed to.
        """
        code = await self._running.end(grace_seconds=10)
        if self._port is not None:
            self._port.close()
        if code:
            raise self._running.failed(f"ended with code {code} when it was asked to drain")

    @property
    def _running(self) -> Child:
        assert self._child is not None
        return self._child


def _durable(data: Path) -> Sequence[str]:
    return ["--data-dir", str(data.resolve()), "--durability", "interval:1", "--log-bytes", str(LOG_BYTES)]


def _reserved() -> socket.socket:
    """A port that the system gives to nobody else, and on which a server that reuses addresses can listen."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    return bound


def _service() -> list[str]:
    script = Path(sys.executable).with_name("ps-service")
    return [str(script)] if script.exists() else [sys.executable, "-m", "ps_service"]
