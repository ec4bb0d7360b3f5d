"""Measures how long an owner is down when it drains, writes its checkpoint, and starts from it again.

`python -m benchmarks.restarts` prints it for several sizes. The owner is a process of its own, as in production. A
trainer is connected and calls it as soon as it answers again. For comparison, as many bytes are written to a plain file
and synced.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import psutil
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import trainer_client as tc
from ps_service.launch.ports import ReservedPort
from ps_wire.limits import MIB

_WIDTH = 1024
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Pause:
    """One restart; times in seconds, memory in bytes."""

    state: int
    """Parameters and the state of Adam."""
    drain: float
    """From SIGTERM to the end of the process."""
    start: float
    """From the start of the process to the answer of a call that waited for it."""
    plain: float
    """Seconds for writing and syncing as many bytes to a file."""
    peak: int
    """The most resident memory while it drained, over what it had before."""


async def pause(mib: int) -> Pause:
    """Restarts an owner with `mib` MiB of parameters, and twice as much state of Adam."""
    with tempfile.TemporaryDirectory() as folder, closing(ReservedPort()) as port:
        owner = await serve(folder, port.address)
        async with tc.connect(owner.address, reconnect_timeout=300, timeout=300) as ps:
            layers = max(1, mib * MIB // (4 * _WIDTH * _WIDTH))
            nets = [await ps.module(nn.Linear, _WIDTH, _WIDTH, name=f"layer{i}") for i in range(layers)]
            opt = await ps.optimizer(torch.optim.Adam, [p for each in nets for p in each.parameters()], lr=1e-3)
            async with ps.context() as ctx:
                x = torch.ones(1, _WIDTH)
                for each in nets:
                    x = await each(x)
                await ctx.backward(x.square().mean())
                await opt.step(ctx)
            before = owner.memory()
            began = perf_counter()
            owner.end()
            peak = await owner.gone()
            drained = perf_counter()
            calling = asyncio.ensure_future(_call(nets[0]))
            owner = await serve(folder, owner.address)
            await calling
            started = perf_counter()
        owner.end()
        await owner.gone()
        state = 3 * 4 * layers * (_WIDTH * _WIDTH + _WIDTH)
        return Pause(state, drained - began, started - drained, _plain(Path(folder), state), max(0, peak - before))


async def _call(net: tc.RemoteModule) -> None:
    with torch.no_grad():
        await net(torch.ones(1, _WIDTH))


class OwnerProcess:
    """The process of an owner."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.address = address
        self._process = process
        self._watched = psutil.Process(process.pid)

    def memory(self) -> int:
        """Its resident memory in bytes."""
        return int(self._watched.memory_info().rss)

    def own_memory(self) -> int:
        """The same without that of files, such as those of the log."""
        found = self._watched.memory_info()
        return int(found.rss - found.shared)

    def end(self) -> None:
        """Lets it drain and end."""
        self._process.send_signal(signal.SIGTERM)

    async def kill(self) -> None:
        """Kills it, and waits for its end."""
        self._process.kill()
        await self._process.wait()

    async def gone(self) -> int:
        """Waits for its end, and returns the most memory that it had until then."""
        peak = 0
        ending = asyncio.ensure_future(self._process.wait())
        while not ending.done():
            try:
                peak = max(peak, self.memory())
            except psutil.Error:
                break
            await asyncio.wait([ending], timeout=_POLL_SECONDS)
        if code := await ending:
            raise RuntimeError(f"the owner ended with code {code}")
        return peak


async def serve(folder: str, listen: str, *flags: str) -> OwnerProcess:
    """Starts an owner with a data directory in a folder, and waits until it serves; else raises `RuntimeError`."""
    command = [sys.executable, "-m", "ps_service", "serve", "--listen", listen, "--data-dir", f"{folder}/data"]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--durability",
        "off",
        "--log-level",
        "error",
        *flags,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    if " is serving on " not in line:
        raise RuntimeError(f"the owner did not start: {line!r}")
    return OwnerProcess(process, line.split()[-1])


def _plain(folder: Path, nbytes: int) -> float:
    block = os.urandom(MIB)
    began = perf_counter()
    with (folder / "plain").open("wb") as file:
        for _ in range(nbytes // MIB):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return perf_counter() - began


def main() -> None:
    """Measures and prints the restarts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restarts", description="Measures restarts of an owner.")
    parser.add_argument("--mib", type=int, nargs="+", default=[4, 64, 256], help="MiB of parameters")
    table = Table("state, MiB", "drain, s", "start, s", "plain file, s", "memory while it drains, MiB")
    for mib in parser.parse_args().mib:
        found = asyncio.run(pause(mib))
        table.add_row(
            f"{found.state / MIB:.0f}",
            f"{found.drain:.2f}",
            f"{found.start:.2f}",
            f"{found.plain:.2f}",
            f"+{found.peak / MIB:.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
