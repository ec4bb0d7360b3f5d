"""What an open page costs an owner: its steps per second with a page open and without one, in turns.

    python -m benchmarks.page --rounds 20 --seconds 3 --trainers 0

The owner runs in this process, with a second owner in its group, a trainer that steps without a pause, and a reader of
the page's messages, each in a process of its own. In each round the page is closed and open for some seconds, in an
order that alternates. Printed are the ratio of each round's steps (its median and quartiles) and the processor time of
the owner per second of both.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import torch

import trainer_client as tc
from ps_service.engine import Engine
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


async def measure(rounds: int, seconds: float, trainers: int, width: int) -> None:
    """Measures, and prints."""
    engine = Engine("ps0")
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(engine, HERE, http=HERE))
        member = await join(server, Settings())
        assert server._web is not None
        server._web.page.watch.linger_seconds = 0.0
        serve = ("ps_service", "serve", "--name", "ps1", "--listen", HERE, "--directory", server.address)
        other = await started(stack, *serve)
        await other.stdout.readline()
        for _ in range(trainers):
            session = engine.sessions.open(os.urandom(16))
            session.streams, session.transport = 1, "grpc"
        await started(stack, "benchmarks.page", "--train", server.address, "--width", str(width))
        while counted(engine) < 100:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        ratios, costs = [], {False: [], True: []}
        for number in range(rounds):
            found = {}
            for is_open in (False, True) if number % 2 else (True, False):
                async with AsyncExitStack() as page:
                    if is_open:
                        await started(page, "benchmarks.page", "--read", f"http://{server.http_address}/messages")
                        while not len(server._web.page.streams):  # noqa: ASYNC110
                            await asyncio.sleep(0.01)
                    while not is_open and server._web.page.watch.running:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    await asyncio.sleep(0.5)
                    found[is_open], cost = await rate(engine, seconds)
                    costs[is_open].append(cost)
                server._web.page.streams.end()
            ratios.append(found[True] / found[False])
            print(f"closed {found[False]:7.1f} steps/s, open {found[True]:7.1f}: {ratios[-1]:.4f}", flush=True)
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"open / closed: median {middle:.4f}, quartiles {low:.4f} and {high:.4f}, {rounds} rounds of {seconds:g} s"
        )
        closed, opened = (statistics.median(costs[each]) for each in (False, True))
        print(f"processor time of the owner per step: closed {1e6 * closed:.0f} µs, open {1e6 * opened:.0f} µs")
        await member.client.close()
        await member.unary.close()


def counted(engine: Engine) -> int:
    """The steps that the owner has applied."""
    return sum(each.steps for each in engine.counters.steps.snapshot().values())


async def rate(engine: Engine, seconds: float) -> tuple[float, float]:
    """Steps per second for some time, and the processor time of this process for each."""
    began, cpu, steps = time.perf_counter(), time.process_time(), counted(engine)
    await asyncio.sleep(seconds)
    made = counted(engine) - steps
    return made / (time.perf_counter() - began), (time.process_time() - cpu) / max(made, 1)


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--trainers", type=int, default=0, help="further trainers that are connected and do nothing")
    parser.add_argument("--width", type=int, default=256, help="of the layer that is trained")
    parser.add_argument("--train", default="", help=argparse.SUPPRESS)
    parser.add_argument("--read", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        asyncio.run(train(given.train, given.width))
    elif given.read:
        asyncio.run(read(given.read))
    else:
        asyncio.run(measure(given.rounds, given.seconds, given.trainers, given.width))


if __name__ == "__main__":
    main()
