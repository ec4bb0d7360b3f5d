"""A trainer that ends without closing its client.

python -m tests.integration.unclosed_trainer ADDRESS TRANSPORT HOW
"""

from __future__ import annotations

import asyncio
import sys
import threading
import warnings
from typing import Any

import torch

import trainer_client as tc
from tests.transports import TRANSPORTS

kept: list[Any] = []


async def train(address: str, transport: str) -> None:
    """One step, in rounds that wait for this trainer from then on."""
    ps = await tc.connect(address, **TRANSPORTS[transport])  # type: ignore[arg-type]
    kept.append(ps)
    net = await ps.module(torch.nn.Linear, 4, 4, name="net", seed=0)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, policy=tc.policies.Sync())
    async with ps.context() as ctx:
        await ctx.backward((await net(torch.ones(1, 4))).sum(), step=opt)
    print("stepped", flush=True)


def train_blocking(address: str, transport: str) -> None:
    """The same with the blocking client."""
    ps = tc.connect(address, **TRANSPORTS[transport]).__enter__()  # type: ignore[arg-type]
    kept.append(ps)
    net = ps.module(torch.nn.Linear, 4, 4, name="net", seed=0)
    opt = ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, policy=tc.policies.Sync())
    with ps.context() as ctx:
        ctx.backward(net(torch.ones(1, 4)).sum(), step=opt)
    print("stepped", flush=True)


async def failing(address: str, transport: str) -> None:
    await train(address, transport)
    sys.exit(7)


def in_thread(address: str, transport: str) -> None:
    """In a loop that still runs in another thread when the program ends, as that of a console does."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(train(address, transport), loop).result()


if __name__ == "__main__":
    warnings.simplefilter("always", ResourceWarning)
    *where, how = sys.argv[1:]
    match how:
        case "run":
            asyncio.run(train(*where))
        case "raises":
            asyncio.run(failing(*where))
        case "stopped":
            asyncio.new_event_loop().run_until_complete(train(*where))
        case "thread":
            in_thread(*where)
        case "blocking":
            train_blocking(*where)
    sys.stderr.write("ends\n")
