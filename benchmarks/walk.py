"""Counts the functions of this project that run for one pass of training, on its owner and on its trainer.

`python -m benchmarks.walk` starts an owner in a process of its own and trains networks of the steady rows with it, over
shared memory: a forward, and a backward with its step. A pass reaches from one forward to the next, so that nothing
between passes is left out. Of many passes the one with the fewest calls counts: on a busy machine some requests take a
detour through a thread. `--functions` lists what ran in it.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import torch
import uvloop
from torch import Tensor

import trainer_client as tc
from benchmarks import data, jobs, models, nets
from benchmarks.data import RECOMMENDER, Batch
from benchmarks.sizes import QUICK
from ps_service.engine import Engine
from ps_service.hosting import objects
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from ps_wire.runtime import latency

_ROOT: Final = Path(__file__).resolve().parent.parent
_PACKAGES: Final = tuple(f"{_ROOT / name}/" for name in ("ps_wire", "ps_service", "trainer_client"))
Loss = Callable[[Tensor, Tensor], Tensor]
_WARM_UP: Final = 50
_RECORDED: Final = 60
"""Passes."""


class Walk(NamedTuple):
    """What runs in a pass.

    Attributes:
        owner: Number of calls of each function on the owner, by its file and name.
        trainer: The same on the trainer.
    """

    owner: Counter[str]
    trainer: Counter[str]


class Recorder:
    """Counts the calls of functions of the project in all threads, pass by pass.

    Args:
        begins: Functions whose calls begin a pass, beside `begin`.
    """

    def __init__(self, *begins: CodeType) -> None:
        self._begins = begins
        self._passes: list[Counter[CodeType]] = []
        self._calls: Counter[CodeType] = Counter()

    def install(self) -> None:
        """Watches this thread, and threads that begin later."""
        threading.setprofile(self._saw)
        sys.setprofile(self._saw)

    def begin(self) -> None:
        """Begins a pass, which ends the former one."""
        self._calls = Counter()
        self._passes.append(self._calls)

    def take(self) -> Counter[str]:
        """The one with the fewest calls of the latest passes. All are forgotten."""
        shortest = min(self._passes[-_RECORDED - 1 : -1], key=Counter.total)
        self._passes = []
        named: Counter[str] = Counter()
        for code, count in shortest.items():
            named[_name(code)] += count  # comprehensions of one function have the same name
        return named

    def _saw(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code in self._begins:
            self.begin()
        elif code.co_filename.startswith(_PACKAGES):
            self._calls[code] += 1


def _name(code: CodeType) -> str:
    return f"{Path(code.co_filename).relative_to(_ROOT)} {code.co_qualname}"


def _prepare(recorder: Recorder) -> None:
    torch.set_num_threads(1)
    # All of it is short work, which recording, and a busy machine, make slower.
    latency.INLINE_SECONDS = latency.FAR_SECONDS = objects.LONG_SECONDS = 1000.0  # type: ignore[misc]
    recorder.install()


def _serve(pipe: Connection) -> None:
    """An owner. To each message it answers with a pass since the last one."""
    recorder = Recorder(models.NeuMF.forward.__code__, nets.Transformer.forward.__code__)
    _prepare(recorder)

    async def main() -> None:
        async with Server(Engine("ps0", AllowList([models, nets])), "127.0.0.1:0") as owner:
            pipe.send(owner.address)
            while await asyncio.to_thread(pipe.recv):
                pipe.send(recorder.take())

    uvloop.run(main())


async def _train(
    recorder: Recorder, ps: tc.Client, net: tc.Module, opt: tc.Optimizer, batches: Sequence[Batch], loss_of: Loss
) -> Counter[str]:
    for x, wanted in islice(cycle(batches), _WARM_UP + _RECORDED + 1):
        recorder.begin()
        async with ps.context() as ctx:
            loss = loss_of(await net(x), wanted)
            await ctx.backward(loss, step=opt)
    return recorder.take()


async def _walk(address: str, pipe: Connection, recorder: Recorder) -> dict[str, Walk]:
    def walked(trainer: Counter[str]) -> Walk:
        pipe.send(True)
        return Walk(pipe.recv(), trainer)

    async with tc.connect(address) as ps:
        net = await ps.module(models.NeuMF, *astuple(RECOMMENDER), True)
        opt = await ps.optimizer(torch.optim.Adagrad, net.parameters(), **data.ADAGRAD)
        neumf = walked(await _train(recorder, ps, net, opt, data.ratings(QUICK), data.rating_loss))
        job = jobs.job("transformer", QUICK)
        net = await ps.module(job.cls, *job.args)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=jobs.LR)
        return {"NeuMF": neumf, "transformer": walked(await _train(recorder, ps, net, opt, job.batches, jobs.loss))}


def measure() -> dict[str, Walk]:
    """What runs in a pass of each network."""
    # What it imports is there already; nothing runs yet that a fork would leave behind.
    forked = multiprocessing.get_context("fork")
    pipe, theirs = forked.Pipe()
    owner = forked.Process(target=_serve, args=(theirs,), daemon=True)
    owner.start()
    try:
        recorder = Recorder()
        _prepare(recorder)
        return uvloop.run(_walk(pipe.recv(), pipe, recorder))
    finally:
        sys.setprofile(None)
        pipe.send(False)
        owner.join()


def main() -> None:
    """Counts the functions and prints them."""
    parser = argparse.ArgumentParser(description="Counts the functions that run for one pass of training.")
    parser.add_argument("--functions", action="store_true", help="list the functions of the pass")
    listed = parser.parse_args().functions
    for net, walk in measure().items():
        for side, calls in walk._asdict().items():
            print(f"{net}, {side}: {calls.total()} calls of {len(calls)} functions")
            for name, count in sorted(calls.items()) if listed else ():
                print(f"{count:6} {name}")


if __name__ == "__main__":
    main()
