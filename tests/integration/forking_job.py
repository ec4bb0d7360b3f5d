"""A trainer whose process forks while it is connected; run by test_forks.py in a process of its own.

    python -m tests.integration.forking_job ADDRESS WHAT

It prints what it found, line by line.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import trainer_client as tc

COUNTER = "tests.hosted_models.Counter"

BATCHES = 16
"""For each client, from 2 forked workers at a time, which are forked anew half-way."""

SOON = 20.0
"""Seconds in which a child is told that it can do nothing: less than any time-out, however slow the machine."""


class Rows(Dataset[torch.Tensor]):
    """Eight batches."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


def batches() -> Iterator[torch.Tensor]:
    """From workers that are forked anew for every epoch."""
    count = 0
    while True:
        for batch in DataLoader(Rows(), batch_size=8, num_workers=2, multiprocessing_context="fork"):
            yield batch
            count += 1
            if count == BATCHES:
                return


def blocking(address: str, shared_memory: bool) -> float:
    """Trains without await; returns the sum of the weights, to which every batch has added the same."""
    with tc.connect(address, shared_memory=shared_memory) as ps:
        net = ps.module(torch.nn.Linear, 8, 1, seed=0)
        opt = ps.optimizer(torch.optim.SGD, net.parameters(), lr=1e-3)
        for batch in batches():
            with ps.context() as ctx:
                ctx.backward(net(batch).sum())
                opt.step(ctx)
        return float(net.state_dict()["weight"].sum())


async def awaiting(address: str, shared_memory: bool) -> float:
    """The same with await."""
    async with tc.connect(address, shared_memory=shared_memory) as ps:
        net = await ps.module(torch.nn.Linear, 8, 1, seed=0)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=1e-3)
        for batch in batches():
            async with ps.context() as ctx:
                await ctx.backward((await net(batch)).sum())
                await opt.step(ctx)
        return float((await net.state_dict())["weight"].sum())


def loaders(address: str) -> None:
    """Both clients, each over one of the transports, with the workers of a DataLoader."""
    one, other = blocking(address, shared_memory=True), asyncio.run(awaiting(address, shared_memory=False))
    print("equal", abs(one - other) < 1e-3 * abs(one))


def in_child(work: Callable[[], None]) -> None:
    """Does something in a forked child, which then ends as programs do."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        work()
        sys.exit(0)
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def refused(do: Callable[[], Any]) -> str:
    """The error that something raises, at once."""
    began = time.monotonic()
    try:
        do()
    except tc.PsError as error:
        return f"{type(error).__name__} {'soon' if time.monotonic() - began < SOON else 'late'}"
    return "no error"


def children(address: str, shared_memory: bool) -> None:
    """What a child can do with its parent's client, and what the parent has of it."""
    with tc.connect(address, shared_memory=shared_memory) as ps:
        held = [ps.create(COUNTER), ps.create("tests.hosted_models.Gate")]
        held += [held[0].echo(torch.ones(100_000)) for _ in range(3)]
        waiting = held[1].unwrapped.wait()

        def use() -> None:
            print("call", refused(held[0].add))
            print("pending", refused(waiting.wait))
            print("context", refused(lambda: ps.context().__enter__() and held[0].add()))
            print("optimizer", refused(lambda: ps.optimizer(torch.optim.SGD, [torch.ones(1)], lr=0.1)))
            print("gather", refused(lambda: asyncio.run(awaited())))
            print("connect", refused(lambda: tc.connect(address, connect_timeout=30).__enter__()))
            # What the child lets go of is still the parent's.
            held.clear()
            gc.collect()

        async def awaited() -> None:
            await held[0].unwrapped.add()

        # It leaves the block of the client on its way out.
        in_child(use)
        print("parent", held[0].add(), held[1].open(), waiting.wait(), float(held[2].sum()))
        status = ps.status()
        print(
            "sessions",
            status.connected_sessions,
            "objects",
            len(status.objects),
            "shared_memory",
            status.shared_memory_connections,
        )


async def awaiting_children(address: str, shared_memory: bool) -> None:
    """The same with await."""
    async with tc.connect(address, shared_memory=shared_memory) as ps:
        counter = await ps.create(COUNTER)
        pending = counter.add()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            print("call", refused(lambda: counter.add().wait()))
            # It leaves the block, and the parent's event loop, on its way out.
            os._exit(leave(ps))
        print("child ended with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))  # noqa: ASYNC222
        print("parent", await pending, await counter.add())
        print("sessions", (await ps.status()).connected_sessions)


def leave(ps: tc.Client) -> int:
    asyncio.run(ps.close())
    sys.stdout.flush()
    return 0


def kept(address: str) -> None:
    """A child goes on seeing the tensors that it was forked with."""
    with tc.connect(address) as ps:
        counter = ps.create(COUNTER)
        held = [counter.echo(torch.full((100_000,), 7.0))]
        ready, go = os.pipe()

        def look() -> None:
            os.read(ready, 1)
            print("child sees", float(held[0].min()), float(held[0].max()))

        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            look()
            sys.stdout.flush()
            os._exit(0)
        held.clear()
        gc.collect()
        # These would be written where that was.
        for number in range(20):
            counter.echo(torch.full((100_000,), float(number)))
        os.write(go, b"x")
        os.waitpid(pid, 0)


def afterwards(address: str) -> None:
    """A child of a process that had not connected yet."""

    def connect() -> None:
        with tc.connect(address) as ps:
            print("child", ps.create(COUNTER).add(3))

    in_child(connect)
    with tc.connect(address) as ps:
        print("parent", ps.create(COUNTER).add(4))


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    # Python's, from 3.12 on, and torch's: that a process with threads forks is what is tried here.
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    address, what = sys.argv[1:]
    if what == "loaders":
        loaders(address)
    elif what == "children":
        afterwards(address)
        kept(address)
    elif what == "blocking":
        for with_shared_memory in (True, False):
            children(address, with_shared_memory)
    else:
        for with_shared_memory in (True, False):
            asyncio.run(awaiting_children(address, with_shared_memory))
