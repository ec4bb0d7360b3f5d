"""An owner as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Final

from ps_service.launch.ports import ReservedPort
from ps_wire.runtime.noop import noop

if TYPE_CHECKING:
    from ps_service.launch.lines import Take
    from ps_service.launch.process import Process, ProcessFailed
    from ps_service.launch.processes import Processes

SELF: Final = "self"


class Owner:
    """An owner in a process that runs `ps-service serve`. Started again after its end, it has the same address.

    When this process ends, the owner drains.

    Args:
        processes: Starts it.
        name: Its name.
        flags: Further options of `ps-service serve`.
        directory: The address of the owner that keeps the directory of its group; `self` if it does itself.
        port: Where it listens on the loopback; 0 for a free port. Raises `OSError` if somebody else does.
        environment: Its variables; None for those of this process.
        out, errors: As for `Process`.

    Attributes:
        name: The same.
        address: Where it serves.
    """

    def __init__(
        self,
        processes: Processes,
        name: str,
        flags: Sequence[str],
        directory: str = SELF,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        out: Take = noop,
        errors: Take | IO[bytes] | None = None,
    ) -> None:
        self.name: Final = name
        self._port = ReservedPort(port)
        self.address: Final = self._port.address
        self._processes = processes
        self._command = [sys.executable, "-m", "ps_service", "serve", *flags]
        self._command += ["--name", name, "--listen", self.address, "--advertise", "", "--directory", directory]
        # What hosted code prints comes at once.
        self._environment = dict(os.environ if environment is None else environment) | {"PYTHONUNBUFFERED": "1"}
        self._out, self._errors = out, errors
        self._process: Process | None = None
        self._serves = False

    @property
    def process(self) -> Process:
        """The process that was started last."""
        assert self._process is not None
        return self._process

    @property
    def runs(self) -> bool:
        """Whether its process was started, and has not ended."""
        return self._process is not None and self._process.code is None

    async def start(self, begun: Callable[[Process], object] = noop) -> None:
        """Starts it, and waits until it serves. `begun` gets the process before that. Raises `ProcessFailed` if it ends
        before it serves."""
        serving, self._serves = asyncio.Event(), False
        ready = f"{self.name} is serving on {self.address}".encode()

        def take(line: bytes) -> None:
            self._out(line)
            if line.rstrip().endswith(ready):  # something that it imports may have printed without an end of the line
                serving.set()

        self._process = self._processes.start(
            self.name, self._command, self._environment, take, self._errors, signal.SIGTERM
        )
        begun(self._process)
        waiting = [asyncio.ensure_future(serving.wait()), asyncio.ensure_future(self._process.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        self._serves = serving.is_set()
        if not self._serves:
            raise self._process.failed("before it served")

    async def failed(self) -> ProcessFailed:
        """Waits until it has ended, and returns the error that says so."""
        await self.process.wait()
        return self.process.failed("")

    async def end(self, grace_seconds: float | None = None) -> None:
        """Has it drain, and waits until it has ended. Raises `ProcessFailed` if it does so with an error, or is killed
        after the grace. One that does not serve yet has nothing to drain, and is killed."""
        if not self._serves:
            grace_seconds = 0.0
        await self.process.end(signal.SIGTERM, grace_seconds)
        if self.process.code and self._serves:
            raise self.process.failed("when it was asked to drain")


async def start_owners(
    processes: Processes, count: int, flags: Sequence[str], environment: Mapping[str, str] | None = None
) -> list[Owner]:
    """Starts a group of owners, ps0 and so on, and returns them when all serve. Arguments as for `Owner`. Raises
    `ProcessFailed` if one ends before."""
    owners = [Owner(processes, "ps0", flags, environment=environment)]
    for number in range(1, count):
        owners.append(Owner(processes, f"ps{number}", flags, owners[0].address, environment=environment))
    await asyncio.gather(*(owner.start() for owner in owners))
    return owners
