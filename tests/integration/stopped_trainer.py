"""A trainer that is in the midst of a pass, and waits or computes, while a test stops its process.

python -m tests.integration.stopped_trainer ADDRESS TRANSPORT waits|computes
"""

from __future__ import annotations

import asyncio
import ctypes
import sys

import torch

import trainer_client as tc


async def main(address: str, transport: str, what: str) -> None:
    """Says what it does, line by line."""
    async with tc.connect(address, shared_memory=transport == "shared_memory", direct=transport == "direct") as ps:
        net = await ps.module(torch.nn.Linear, 4, 4, name="net", seed=0)
        gate = await ps.create("tests.hosted_models.Gate")
        async with ps.context():
            loss = (await net(torch.ones(4))).sum()
            waiting = gate.wait()
            print("ready", flush=True)
            if what == "computes":
                # One call into C that keeps Python from running: neither the event loop nor any thread gets a turn.
                ctypes.PyDLL(None).usleep(4_500_000)
                print("called", len(await net(torch.ones(4))), "lost", net.session.losses, flush=True)
                waiting.cancel()
                return
            try:
                await waiting
            except tc.PsError as error:
                print("waited", type(error).__name__, flush=True)
            del loss  # until here, the pass has a result that could be used
        net = await ps.attach("net")
        print("again", (await net(torch.ones(4))).shape[0], flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
