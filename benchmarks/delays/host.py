"""An owner or a trainer in a network namespace of its own.

python -m benchmarks.delays.host owner|trainer SOCKET
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import astuple, replace
from functools import cache
from time import perf_counter
from typing import Any, Final

import torch
import uvloop
from torch import Tensor, nn

import trainer_client as tc
from benchmarks import data
from benchmarks.delays import namespace
from benchmarks.models import NeuMF, Scale
from benchmarks.process import ROOT
from benchmarks.sizes import FULL
from benchmarks.trainer import Wire
from ps_wire.limits import MIB

SCALE_COLUMNS: Final = 256
SCALE_ROWS: Final = MIB // 4 // SCALE_COLUMNS
RAW_CHUNK: Final = 256 * 1024
NET_BAGS: Final = 64
NET_WIDTH: Final = 64
WARM_UP: Final = 5
"""Steps that are not counted."""

Pass = Callable[[], Awaitable[object]]


def owner(wire: Wire) -> None:
    """Serves an owner, and swallows bytes on another port, until standard input closes."""
    listener = socket.create_server((namespace.OWNER, 0))
    threading.Thread(target=_swallow, args=(listener,), daemon=True).start()
    command = [sys.executable, "-m", "benchmarks.leash", str(os.getpid()), sys.executable, "-m", "ps_service", "serve"]
    command += ["--name", "ps0", "--listen", f"{namespace.OWNER}:0", "--insecure", "--import", "benchmarks.models"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        wire.put(address=address, raw=listener.getsockname()[1])
        sys.stdin.read()
        process.terminate()


def _swallow(listener: socket.socket) -> None:
    buffer = bytearray(RAW_CHUNK)
    while True:
        with listener.accept()[0] as peer:
            total = 0
            while count := peer.recv_into(buffer):
                total += count
                if buffer[count - 1]:
                    peer.sendall(b"!")
                    buffer[count - 1] = 0


def trainer(wire: Wire) -> None:
    """Handles commands of the measuring process."""
    # One event loop for all clients, because gRPC wants one per process.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for message in wire:
            match message.pop("do"):
                case "raw":
                    wire.put(**_raw(**message))
                case "passes":
                    wire.put(**runner.run(_passes(**message)))
                case "steps":
                    wire.put(**runner.run(_steps(**message)))


def _raw(port: int, seconds: float) -> dict[str, float]:
    """The time of a byte there and back, and the bytes per second of a plain socket."""
    with socket.create_connection((namespace.OWNER, port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(10):
            began = perf_counter()
            peer.sendall(b"!")
            peer.recv(1)
            trips.append(perf_counter() - began)
        chunk = bytes(RAW_CHUNK)
        # The first quarter lets the congestion window grow.
        for part in (seconds / 4, seconds):
            sent, began = 0, perf_counter()
            while perf_counter() - began < part:
                peer.sendall(chunk)
                sent += len(chunk)
            peer.sendall(b"!")
            peer.recv(1)
            taken = perf_counter() - began
    return {"trip": min(trips), "rate": sent / taken}


async def _passes(address: str, work: str, depth: int, seconds: float) -> dict[str, Any]:
    """Passes of several loops at once, each of which begins its next pass when the last has ended."""
    async with tc.connect(address, shared_memory=False, timeout=60) as ps, _work(ps, work) as one_pass:
        ended = False
        done = 0
        one_is_done = asyncio.Event()

        async def loop() -> None:
            nonlocal done
            while not ended:
                await one_pass()
                done += 1
                one_is_done.set()

        async with asyncio.TaskGroup() as group:
            for _ in range(depth):
                group.create_task(loop())
            await asyncio.sleep(seconds / 4)
            before, began = done, perf_counter()
            one_is_done.clear()
            await asyncio.sleep(seconds)
            # A pass may take longer than that.
            await one_is_done.wait()
            passes, taken = done - before, perf_counter() - began
            ended = True
    # With those of the warm-up and the end, for the bytes of a pass.
    return {"per_second": passes / taken, "passes": done}


async def _steps(address: str, depth: int, seconds: float) -> dict[str, Any]:
    """Steps of one loop over a table and a net of this process, with look-ups `depth` batches in advance."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(FULL.dim, NET_WIDTH), nn.ReLU(), nn.Linear(NET_WIDTH, 1))
    batches = itertools.cycle(_ids())
    async with tc.connect(address, shared_memory=False, timeout=60) as ps:
        items = await ps.table("items", FULL.dim, tc.tables.RowWiseAdagrad(lr=0.01))
        opt = await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.01)
        done, began = 0, perf_counter()
        async with aclosing(ps.prefetch(batches, items.bag, depth=depth)) as passes:
            async for _, looked_up in passes:
                async with looked_up.context as ctx:
                    await ctx.backward(net(await looked_up).square().mean(), step=opt)
                done += 1
                if done == WARM_UP:
                    began = perf_counter()
                elif done > WARM_UP and perf_counter() - began > seconds:
                    break
    return {"per_second": (done - WARM_UP) / (perf_counter() - began)}


@cache
def _ids() -> list[Tensor]:
    """The ids of each batch of `_steps`."""
    return [ids for ids, _ in data.table_bags(replace(FULL, bags=NET_BAGS))]


@asynccontextmanager
async def _work(ps: tc.Client, work: str) -> AsyncIterator[Pass]:
    if work == "scale":
        module = await ps.module(Scale, SCALE_COLUMNS)
        batch = (torch.randn(SCALE_ROWS, SCALE_COLUMNS), torch.randn(SCALE_ROWS, SCALE_COLUMNS))
        loss_of: Callable[[Tensor, Tensor], Tensor] = nn.functional.mse_loss
    else:
        module = await ps.module(NeuMF, *astuple(data.RECOMMENDER), seed=data.MODEL_SEED)
        batch = data.ratings(FULL)[0]
        loss_of = data.rating_loss
    opt = await ps.optimizer(torch.optim.Adagrad, module.parameters(), **data.ADAGRAD)

    async def one_pass() -> None:
        async with ps.context() as ctx:
            await ctx.backward(loss_of(await module(batch[0]), batch[1]), step=opt)

    yield one_pass


def main() -> None:
    """Enters the namespace and takes the role."""
    role, path = sys.argv[1:]
    namespace.enter(path, role)
    wire = Wire()
    torch.set_num_threads(1)
    if role == "owner":
        owner(wire)
    else:
        wire.put(ready=True)
        trainer(wire)


if __name__ == "__main__":
    main()
