"""Owners as processes of their own, for tests of how they start and end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

from tests.forking.process import ROOT, AsyncForked, Forking
from tests.ports import ReservedPort

COMMAND: Final = str(Path(sys.executable).parent / "ps-service")
ENVIRONMENT: Final = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("PS_", "GRPC_"))},
    "OMP_NUM_THREADS": "1",
    "PS_COMPILE_TABLES": "no",
    "COLUMNS": "120",
    "NO_COLOR": "1",
}


class OwnerProcess:
    """A process, and what it has written."""

    def __init__(self, process: asyncio.subprocess.Process | AsyncForked, first: str) -> None:
        self.process = process
        self.first = first
        self.address = first.split()[-1] if first else ""

    async def ended(self) -> tuple[str, list[str]]:
        """What else it wrote: the rest of standard output, and lines of standard error."""
        async with asyncio.timeout(60):
            out, error = await self.process.communicate()
        return out.decode(), error.decode().splitlines()


class StartOwner(Protocol):
    """Starts an owner: `await start("--name", "ps0", cwd=...)`."""

    def __call__(self, *flags: str, cwd: Path = ROOT, **variables: str) -> Awaitable[OwnerProcess]: ...


@asynccontextmanager
async def forked_owners(forking: Forking) -> AsyncIterator[StartOwner]:
    """The same with owners that are forked: for tests of what they do, and not of the command that starts them."""
    async with AsyncExitStack() as stack:

        async def start(*flags: str, cwd: Path = ROOT, **variables: str) -> OwnerProcess:
            # Nobody else gets its port if it ends and is started again there.
            listen = () if "--listen" in flags else ("--listen", stack.enter_context(ReservedPort()).address)
            command, environment = ("ps_service", "serve", *listen, *flags), {**ENVIRONMENT, **variables}
            process = await forking.begin(*command, errors=True, cwd=cwd, variables=environment)
            await stack.enter_async_context(aclosing(process))
            async with asyncio.timeout(60):
                return OwnerProcess(process, (await process.stdout.readline()).decode())

        yield start


@asynccontextmanager
async def owner_processes() -> AsyncIterator[StartOwner]:
    """What starts owners; none of them is left after the block."""
    processes: list[asyncio.subprocess.Process] = []
    ports: list[ReservedPort] = []

    async def start(*flags: str, cwd: Path = ROOT, **variables: str) -> OwnerProcess:
        listen: tuple[str, ...] = ()
        if "--listen" not in flags:
            ports.append(ReservedPort())
            listen = ("--listen", ports[-1].address)
        process = await asyncio.create_subprocess_exec(
            COMMAND, "serve", *listen, *flags,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, env={**ENVIRONMENT, **variables},
        )  # fmt: skip
        processes.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(60):
            return OwnerProcess(process, (await process.stdout.readline()).decode())

    try:
        yield start
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        for port in ports:
            port.close()
