"""Tests that an owner survives the end of a pass whose graph is very deep."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch, uvloop
import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server

async def main():
    async with Server(Engine("ps0", AllowList([]))) as owner, tc.connect(owner.address) as ps:
        net = await ps.module(torch.nn.RNN, 1, 1)
        async with ps.context() as ctx:
            outputs, last = await net(torch.ones(16_000, 1))
            await ctx.backward(last.sum())
            gradients = await ctx.get_gradients()
        print(len(gradients), await ps.status() is not None)

uvloop.run(main())
"""


def test_the_graph_of_a_long_recurrence_is_freed() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4", "True"]
