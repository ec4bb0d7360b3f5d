"""Starts an owner, a trainer, an export that follows and the page, and ends them with Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvicorn

import ps_reader
import trainer_client as tc
from examples import jobs
from examples.serving.app import make_app
from ps_service.launch.process import ProcessFailed
from ps_service.launch.processes import Processes
from ps_service.launch.trainers import environment_of


async def serve(season: float, every: float, host: str, port: int) -> None:
    """Runs all, until it is cancelled or the page is ended by a signal. Raises `ProcessFailed` if a process ends."""
    with tempfile.TemporaryDirectory() as folder:
        async with Processes() as processes:
            (owner,) = await jobs.addresses_of_owners(processes, 1)
            trainer = [sys.executable, "-m", "examples.serving.trainer", "--season", f"{season:g}"]
            variables = environment_of(0, 1, [owner], environment=jobs.environment())
            processes.start("trainer", trainer, variables, tell)
            await tables_of(owner)
            processes.start("export", export_command(folder, owner, every), jobs.environment(), tell)
            await first_version(Path(folder))
            config = uvicorn.Config(make_app(folder), host, port, log_level="warning")
            listening = config.bind_socket()
            listening.listen()
            print(f"the page is at http://{host}:{listening.getsockname()[1]}", flush=True)
            await uvicorn.Server(config).serve([listening])


def export_command(folder: str, address: str, every: float) -> list[str]:
    """The command that exports both tables."""
    tables = ("--table", "listeners", "--table", "songs")
    return [
        *(sys.executable, "-m", "ps_service", "export", folder, address),
        *("--follow", "--every", f"{every:g}", "--quiet", "--keep", "20", *tables),
    ]


def tell(line: bytes) -> None:
    """Prints a line of a process."""
    print(line.decode().rstrip(), flush=True)


async def tables_of(owner: str) -> None:
    """Waits until the trainer has made its tables."""
    async with tc.connect(owner) as ps:
        # An owner has no event for it.
        while len((await ps.status()).tables) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def first_version(folder: Path) -> None:
    """Waits for the first version of an export."""
    while True:
        try:
            ps_reader.open(folder).close()
        except ps_reader.ExportError:
            await asyncio.sleep(0.1)
        else:
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the example and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.serving", description=__doc__)
    parser.add_argument("--season", type=float, default=10.0, help="seconds until tastes change")
    parser.add_argument("--every", type=float, default=0.5, help="seconds from one version to the next")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    told = parser.parse_args(arguments)
    try:
        asyncio.run(serve(told.season, told.every, told.host, told.port))
    except ProcessFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # which is how it is ended
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
