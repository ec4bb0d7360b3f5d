"""What an open page costs an owner, measured with a page open and without one, in turns.

    python -m benchmarks.page --rounds 20 --seconds 3
    python -m benchmarks.page --idle --trainers 1000 --objects 10000

The owner runs in this process. Beside it are a second owner in its group, a trainer that steps without a pause, and a
reader of the page's messages, each in a process of its own. In each round the page is closed and open for some
seconds, in an order that alternates. Printed is the ratio of the steps per second: its median over the rounds, and its
quartiles.

With `--idle` nobody trains, and the processor time of the owner per second is measured. The difference is what is
missing for steps on an owner that is busy. It can be measured on a machine that others use, too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import aiohttp
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.creation import create
from ps_service.server import Server
from trainer_client.rpc.joining import join
from trainer_client.session.settings import Settings

HERE = "127.0.0.1:0"


async def train(address: str, width: int) -> None:
    """Steps without a pause."""
    torch.set_num_threads(1)
    async with tc.connect(address) as ps:
        net = await ps.module("torch.nn.Linear", width, width, name="net")
        opt = await ps.optimizer("torch.optim.SGD", net.parameters(), lr=1e-6, name="sgd")
        x = torch.randn(32, width)
        while True:
            async with ps.context() as ctx:
                await ctx.backward((await net(x)).sum(), step=opt)


async def read(url: str) -> None:
    """Reads the messages of the page."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http, http.get(url) as response:
        async for _ in response.content.iter_any():
            pass


async def started(stack: AsyncExitStack, *arguments: str) -> Any:
    """A process of this module, which is ended at the end."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, stdout=asyncio.subprocess.PIPE)

    async def end() -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()

    stack.push_async_callback(end)
    return process


async def measure(given: argparse.Namespace) -> None:
    """Measures, and prints."""
    engine = Engine("ps0")
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(engine, HERE, http=HERE))
        member = await join(server, Settings())
        stack.push_async_callback(member.client.close)
        stack.push_async_callback(member.unary.close)
        assert server._web is not None
        page = server._web.page
        page.watch.linger_seconds = 2.0
        serve = ("ps_service", "serve", "--name", "ps1", "--listen", HERE, "--directory", server.address)
        other = await started(stack, *serve)
        await other.stdout.readline()
        for _ in range(given.trainers):
            session = engine.sessions.open(os.urandom(16))
            session.streams, session.transport = 1, "grpc"
        for number in range(given.objects):
            create(engine, "torch.nn.Linear", (1, 1), {}, name=f"object{number}")
        if not given.idle:
            await started(stack, "benchmarks.page", "--train", server.address, "--width", str(given.width))
            while counted(engine) < 100:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        found: dict[bool, list[Rate]] = {False: [], True: []}
        for number in range(given.rounds):
            for is_open in (False, True) if number % 2 else (True, False):
                async with AsyncExitStack() as reading:
                    if is_open:
                        await started(reading, "benchmarks.page", "--read", f"http://{server.http_address}/messages")
                    # Both are watched, so that the turns differ in nothing else.
                    while bool(len(page.feed.streams)) is not is_open or page.watch.running is not is_open:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    await asyncio.sleep(1.0)
                    found[is_open].append(await rate(engine, given.seconds))
                page.feed.end()
        told(found, given)


def told(found: dict[bool, list[Rate]], given: argparse.Namespace) -> None:
    """Prints what was measured."""
    print(f"{given.rounds} rounds of {given.seconds:g} s, {given.trainers} more trainers, {given.objects} objects")
    if given.idle:
        closed, opened = (
            1000 * statistics.median(each.processor for each in found[is_open]) for is_open in (False, True)
        )
        print(
            f"processor time of the owner: closed {closed:.2f} ms/s, open {opened:.2f}: {(opened - closed) / 10:.2f} %"
        )
        return
    pairs = list(zip(found[True], found[False], strict=True))
    low, middle, high = statistics.quantiles([opened.steps / closed.steps for opened, closed in pairs], n=4)
    usual = statistics.median(each.steps for each in found[False])
    print(
        f"steps per second with a page / without: {middle:.4f}, quartiles {low:.4f} and {high:.4f}; without {usual:.0f}"
    )


class Rate(NamedTuple):
    """What an owner did per second: its steps, and seconds of processor time."""

    steps: float
    processor: float


def counted(engine: Engine) -> int:
    """The steps that the owner has applied."""
    return sum(each.steps for each in engine.counters.steps.snapshot().values())


async def rate(engine: Engine, seconds: float) -> Rate:
    """The rates over some time."""
    began, cpu, steps = time.perf_counter(), time.process_time(), counted(engine)
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    return Rate((counted(engine) - steps) / took, (time.process_time() - cpu) / took)


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--trainers", type=int, default=0, help="further trainers that are connected and do nothing")
    parser.add_argument("--objects", type=int, default=0, help="objects that the owner hosts")
    parser.add_argument("--idle", action="store_true", help="measure the processor time of an owner without trainers")
    parser.add_argument("--width", type=int, default=256, help="of the layer that is trained")
    parser.add_argument("--train", default="", help=argparse.SUPPRESS)
    parser.add_argument("--read", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        asyncio.run(train(given.train, given.width))
    elif given.read:
        asyncio.run(read(given.read))
    else:
        asyncio.run(measure(given))


if __name__ == "__main__":
    main()
