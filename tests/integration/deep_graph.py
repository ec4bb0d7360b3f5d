"""An owner whose pass has a very deep graph, which may overflow the stack of the thread that frees it.

python -m tests.integration.deep_graph
"""

from __future__ import annotations

import torch
import uvloop

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server


async def main() -> None:
    """Says how many gradients there are, and whether the owner still answers."""
    async with Server(Engine("ps0", AllowList([]))) as owner, tc.connect(owner.address) as ps:
        net = await ps.module(torch.nn.RNN, 1, 1)
        async with ps.context() as ctx:
            _, last = await net(torch.ones(16_000, 1))
            await ctx.backward(last.sum())
            gradients = await ctx.get_gradients()
        print(len(gradients), await ps.status() is not None)


if __name__ == "__main__":
    uvloop.run(main())
