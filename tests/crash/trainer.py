"""A trainer of the crash test.

python -m tests.crash.trainer LOG SLOT SEED TRANSPORT WORKLOADS ADDRESS...

LOG is the file for its log. WORKLOADS are names, separated by commas, and TRANSPORT is memory, direct or grpc. It
reads commands from its standard input, one a line: `pause`, after which it tells `paused` once its action is done, and
`go`. It tells of its actions on its standard output, see `events`.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import random
import signal
import sys
import traceback
from typing import Final

import torch

import trainer_client as tc
from tests.crash.events import Teller
from tests.crash.workloads import WORKLOADS

PATIENCE: Final = 600.0
"""Seconds within which a request is answered, and an owner is back."""


async def work(slot: int, choose: random.Random, transport: str, names: list[str], addresses: list[str]) -> None:
    """Works until it is killed."""
    tell, going = Teller(1), asyncio.Event()
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)

    async def obey() -> None:
        while line := await commands.readline():
            (going.set if line == b"go\n" else going.clear)()

    obeying = asyncio.create_task(obey())
    options = {"shared_memory": transport == "memory", "direct": transport != "grpc"}
    connecting = tc.connect(*addresses, timeout=PATIENCE, reconnect_timeout=PATIENCE, **options)
    async with connecting as ps:
        workloads = [WORKLOADS[each]() for each in names]
        for each in workloads:
            await each.prepare(ps, slot)
        weights = [each.weight for each in workloads]
        while not obeying.done():
            if not going.is_set():
                tell.tell(paused=True)
                await going.wait()
            await choose.choices(workloads, weights)[0].step(ps, choose, tell)


def main() -> None:
    told, slot, seed, transport, names, *addresses = sys.argv[1:]
    os.dup2(os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    try:
        asyncio.run(work(int(slot), random.Random(seed), transport, names.split(","), addresses))
    except BaseException:
        Teller(1).tell(failed=traceback.format_exc()[-3000:])
        raise


if __name__ == "__main__":
    main()
