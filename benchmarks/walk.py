"""Counts the functions that run for one gradient, from the backward on a trainer to the step on its owner.

`python -m benchmarks.walk` runs an owner and a trainer in one process, joined by shared memory. It trains a small table
until requests take their usual way, then records every Python function of this project that runs in a pass: from the
call of `ctx.backward` until torch's optimizer begins its step. Of several passes the one with the fewest functions
counts: on a busy machine some requests are taken for long ones, and make a detour through a thread.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import torch
import uvloop

import trainer_client as tc
from benchmarks import models
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from ps_wire.runtime import latency

_ROOT: Final = Path(__file__).resolve().parent.parent
_PACKAGES: Final = tuple(str(_ROOT / name) for name in ("ps_wire", "ps_service", "trainer_client"))
_WARM_UP: Final = 150
_RECORDED: Final = 50
"""Passes."""

_SLOWER: Final = 100
"""Factor by which the limits of short work are raised, because recording makes it slower."""


class Recorder:
    """Records the functions of the project that are called in any thread, until an optimizer of torch steps.

    Attributes:
        calls: Number of calls of each function.
    """

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self._recording = False

    def install(self) -> None:
        """Watches this thread, and threads that begin later."""
        threading.setprofile(self._saw)
        sys.setprofile(self._saw)

    def begin(self) -> None:
        """Begins to record."""
        self.calls.clear()
        self._recording = True

    def end(self) -> None:
        """Stops recording."""
        self._recording = False

    def _saw(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not self._recording:
            return
        code = frame.f_code
        if code.co_name == "step" and "/torch/optim/" in code.co_filename:
            self._recording = False
        elif code.co_filename.startswith(_PACKAGES):
            self.calls[code] += 1


async def _walk(recorder: Recorder) -> Counter[CodeType]:
    walks = []
    async with (
        Server(Engine("ps0", AllowList([models])), "127.0.0.1:0") as owner,
        tc.connect(owner.address) as ps,
    ):
        table = await ps.module(models.EmbeddingTable, 200, 16, 0.0)
        opt = await ps.optimizer(torch.optim.SGD, table.parameters(), lr=0.01)
        words = torch.zeros(7, 10, dtype=torch.long)
        for _ in range(_WARM_UP + _RECORDED):
            async with ps.context() as ctx:
                loss = (await table(words)).sum()
                recorder.begin()
                await ctx.backward(loss, step=opt)
                recorder.end()
            walks.append(recorder.calls.copy())
    return min(walks[_WARM_UP:], key=len)


def main() -> None:
    """Counts the functions and prints them."""
    torch.set_num_threads(1)
    latency.INLINE_SECONDS *= _SLOWER  # type: ignore[misc]
    recorder = Recorder()
    recorder.install()
    calls = uvloop.run(_walk(recorder))
    files = {code.co_filename for code in calls}
    print(f"{len(calls)} functions in {len(files)} files, {calls.total()} calls")


if __name__ == "__main__":
    main()
