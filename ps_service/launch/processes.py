"""The programs that a block has started."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from ps_service.launch.process import Process

if TYPE_CHECKING:
    from ps_service.launch.lines import Take


class Processes:
    """Starts programs. The end of the `async with` block ends those that still run by SIGTERM, the youngest first.

    Args:
        grace_seconds: After that they are killed; also as soon as the end of the block is cancelled.
    """

    def __init__(self, grace_seconds: float = 10.0) -> None:
        self._grace_seconds = grace_seconds
        self._started: list[Process] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ending = asyncio.create_task(self._end())
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError as again:
                cancelled = again
                self.kill()
        if cancelled is not None:
            raise cancelled

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        out: Take,
        errors: Take | IO[bytes] | None = None,
        orphaned: signal.Signals = signal.SIGKILL,
    ) -> Process:
        """Starts a program. Arguments as for `Process`. Raises `OSError` if there can be no further process."""
        process = Process(name, command, environment, out, errors, orphaned)
        self._started = [*(each for each in self._started if each.code is None), process]
        return process

    def kill(self) -> None:
        """Kills all."""
        for process in self._started:
            process.kill()

    async def _end(self) -> None:
        for process in reversed(self._started):
            await process.end(signal.SIGTERM, self._grace_seconds)
