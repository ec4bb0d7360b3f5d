"""Child processes that never outlive their parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import examples

_ROOT = Path(examples.__file__).resolve().parents[1]


class ChildFailed(RuntimeError):
    """A child process failed; the message names its log."""


class Child:
    """A running process, in a session of its own, so that Ctrl-C in a terminal reaches only its launcher."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def lines(self) -> AsyncIterator[str]:
        """Yields the lines of the child's standard output."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            yield line.decode(errors="replace").rstrip("\n")

    async def wait(self) -> int:
        """Waits for the end of the child and returns its exit code (``-N``: ended by signal ``N``)."""
        return await self._process.wait()

    async def end(self, grace_seconds: float) -> int:
        """Sends SIGTERM, kills the child after the grace period, and returns its exit code."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_seconds):
                await self._process.wait()
        except TimeoutError:
            self.kill()
        return await self._process.wait()

    def kill(self) -> None:
        """Kills the child."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Process.terminate() and kill() poll first, and can take the exit code away from the loop's own watcher.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def failed(self, what: str) -> ChildFailed:
        """Returns the error that says what went wrong and how the child's log ends."""
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])
        return ChildFailed(f"{self.name} {what}; its log is {self.log}" + (f" and ends with\n{tail}" if tail else ""))


class Children:
    """Starts children. The end of its ``async with`` block ends those that still run, the youngest first."""

    def __init__(self, logs: Path, grace_seconds: float = 10.0) -> None:
        self._logs = logs
        self._grace_seconds = grace_seconds
        self._children: list[Child] = []

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
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
                # After a second Ctrl-C the processes are killed at once, so that none is left.
                cancelled = again
                for child in self._children:
                    child.kill()
        if cancelled is not None:
            raise cancelled

    async def start(self, name: str, command: Sequence[str], env: Mapping[str, str], again: bool = False) -> Child:
        """Starts a child whose standard error goes to ``NAME.log``; behind what is there if it is started again.

        Raises:
            OSError: the program cannot be started.
        """
        log = self._logs / f"{name}.log"
        with log.open("ab" if again else "wb") as errors:
            # If this is cancelled, asyncio itself kills the process it has just made.
            process = await asyncio.create_subprocess_exec(
                *command,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    async def _end(self) -> None:
        for child in reversed(self._children):
            await child.end(self._grace_seconds)


def environment() -> dict[str, str]:
    """The environment of a child that is a program of this project."""
    # So that children find the package whatever directory the example was started from.
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    return dict(os.environ) | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
