"""A program that runs beside this one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from ps_service.launch.lines import Reader, Take

_TIED: Final = str(Path(__file__).with_name("tied.py"))

_READ_SECONDS: Final = 1.0
"""Seconds in which the last lines of one that has ended are read. What it has started may keep its output open."""


class ProcessFailed(RuntimeError):
    """A process has ended that should not have. `status` is the exit status that says so, from 1."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status: Final = status


class Process:
    """A running program, in a session of its own: Ctrl-C in a terminal does not reach it. Its standard input is empty.

    It gets a signal when this process ends, however that ends. What it has started and left behind is killed when it
    has ended itself. Made in the main thread, on a running event loop.

    Args:
        name: What it is called in messages.
        command: The program and its arguments.
        environment: Its variables.
        out: Takes the lines of its standard output.
        errors: Takes those of its standard error; or the file for them; None for where those of this process go.
        orphaned: The signal.

    Attributes:
        name: The same.
        pid: Its number.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        out: Take,
        errors: Take | IO[bytes] | None = None,
        orphaned: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.name: Final = name
        self._process = subprocess.Popen(
            [sys.executable, "-IS", _TIED, str(int(orphaned)), str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if callable(errors) else errors,
            env=dict(environment),
            start_new_session=True,
        )
        self.pid: Final = self._process.pid
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._ending: asyncio.Task[None] | None = None
        assert self._process.stdout is not None
        self._readers = [Reader(self._process.stdout, out)]
        if callable(errors):
            assert self._process.stderr is not None
            self._readers.append(Reader(self._process.stderr, errors))
        self._handle = os.pidfd_open(self.pid)
        loop.add_reader(self._handle, self._end)

    @property
    def code(self) -> int | None:
        """Its exit code, negative for the number of a signal; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    @property
    def status(self) -> int:
        """Its exit status as a shell has it: 128 more than the number of a signal. Only once it has ended."""
        code = self._ended.result()
        return 128 - code if code < 0 else code

    async def wait(self) -> int:
        """Waits until it has ended and all that it wrote is read. Returns its exit code."""
        return await asyncio.shield(self._ended)

    def when_ended(self, call: Callable[[], object]) -> None:
        """Has something called when it has ended and all that it wrote is read."""
        self._ended.add_done_callback(lambda _: call())

    async def end(self, number: signal.Signals, grace_seconds: float | None) -> bool:
        """Sends a signal, and kills it if it has not ended so many seconds later. Returns whether it was killed."""
        self.send(number)
        try:
            async with asyncio.timeout(grace_seconds):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()
            return True
        return False

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; nothing happens to one that has ended."""
        if self._ending is None:  # until then nobody else has its number
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills it, with what it has started and what has stayed in its group."""
        if self._ending is None:
            os.killpg(self.pid, signal.SIGKILL)

    def failed(self, what: str) -> ProcessFailed:
        """The error that says how it ended, and in which case: `ps0 was ended by SIGKILL before it served`."""
        return ProcessFailed(f"{self.how_it_ended()} {what}".rstrip(), self.status or 1)

    def how_it_ended(self) -> str:
        """Its name, and how it ended."""
        code = self._ended.result()
        if code < 0:
            return f"{self.name} was ended by {signal.Signals(-code).name}"
        return f"{self.name} ended with status {code}"

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        # It still has its number, and so has its group.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        self._ending = asyncio.get_running_loop().create_task(self._read_rest(code))

    async def _read_rest(self, code: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_READ_SECONDS):
                for reader in self._readers:
                    await reader.ended.wait()
        for reader in self._readers:
            reader.close()
        self._ended.set_result(code)
