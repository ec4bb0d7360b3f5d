"""Measures how long an owner that was killed takes to answer again, from a checkpoint and the log behind it.

`python -m benchmarks.killed` prints it for several sizes, beside the target: 3 s, and the state at 500 MB/s, and the
log at 200 MB/s. The owner is a process of its own. A trainer's call waits for it. What is read was written shortly
before, and lies in the page cache unless memory is short.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import trainer_client as tc
from benchmarks.restarts import serve
from ps_service.cli import probe
from ps_service.launch.ports import ReservedPort
from ps_wire.v1.operations_pb2 import CheckpointRequest

MB: Final = 1_000_000

_WIDTH: Final = 1024
_LAYER_BYTES: Final = 4 * (_WIDTH * _WIDTH + _WIDTH)
_FLAGS: Final = ("--durability", "interval:1", "--log-bytes", str(1 << 40))
"""Of the owner: it writes no checkpoint but the one that it is asked for."""


@dataclass(frozen=True)
class Restart:
    """One start after a kill.

    Attributes:
        state: Bytes of parameters and momentum, in the checkpoint and in memory.
        log: Bytes of gradients in the log behind it.
        seconds: From the start of the process to the answer of a call that waited for it.
    """

    state: int
    log: int
    seconds: float

    @property
    def target(self) -> float:
        """Most seconds that it may take."""
        return 3 + self.state / (500 * MB) + self.log / (200 * MB)


async def restart(state: int, log: int) -> Restart:
    """Kills an owner with so many bytes of state and of log, and starts it again.

    Raises:
        RuntimeError: It does not start.
    """
    with tempfile.TemporaryDirectory() as folder, closing(ReservedPort()) as port:
        owner = await serve(folder, port.address, *_FLAGS)
        async with tc.connect(owner.address, reconnect_timeout=300, timeout=300) as ps:
            layers = max(1, state // (2 * _LAYER_BYTES))
            nets = [await ps.module(nn.Linear, _WIDTH, _WIDTH, name=f"layer{i}") for i in range(layers)]
            parameters = [parameter for net in nets for parameter in net.parameters()]
            opt = await ps.optimizer(torch.optim.SGD, parameters, lr=1e-3, momentum=0.9)
            for net in nets:
                await _step(ps, net, opt)
            await asyncio.to_thread(probe.ask, owner.address, CheckpointRequest(), 300.0)
            steps = max(1, log // _LAYER_BYTES)
            for i in range(steps):
                await _step(ps, nets[i % layers], opt)
            await owner.kill()
            calling = asyncio.ensure_future(_call(nets[0]))
            began = perf_counter()
            owner = await serve(folder, owner.address, *_FLAGS)
            await calling
            seconds = perf_counter() - began
            (status,) = (await ps.status()).optimizers
            if status.version != layers + steps:
                raise RuntimeError(f"of {layers + steps} steps the owner has {status.version}")
        await owner.kill()
        return Restart(2 * _LAYER_BYTES * layers, _LAYER_BYTES * steps, seconds)


async def _step(ps: tc.Client, net: tc.RemoteModule, opt: tc.DistributedOptimizer) -> None:
    async with ps.context() as ctx:
        await ctx.backward((await net(torch.ones(1, _WIDTH))).square().mean(), step=opt)


async def _call(net: tc.RemoteModule) -> Tensor:
    with torch.no_grad():
        return await net(torch.ones(1, _WIDTH))


def main() -> None:
    """Measures and prints the starts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.killed", description="Measures starts after a kill.")
    parser.add_argument("--mb", type=int, nargs="+", default=[4, 400], help="MB of state, and of log behind it")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each size")
    options = parser.parse_args()
    table = Table("state, MB", "log, MB", "start, s", "target, s", "")
    for mb in options.mb:
        for _ in range(options.rounds):
            found = asyncio.run(restart(mb * MB, mb * MB))
            reached = "reached" if found.seconds <= found.target else "not reached"
            table.add_row(
                f"{found.state / MB:.0f}",
                f"{found.log / MB:.0f}",
                f"{found.seconds:.2f}",
                f"{found.target:.2f}",
                reached,
            )
    Console().print(table)


if __name__ == "__main__":
    main()
