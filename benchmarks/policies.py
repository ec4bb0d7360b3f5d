"""Measures what four trainers achieve under each policy while one of them is slow, all pause in turn, or one is killed.

`python -m benchmarks.policies` prints a table. The owner and every trainer are processes of their own. A trainer makes
a pass of a small layer, waits 5 ms as if it computed, and steps; the slow one waits 50 ms in its own loop. Trainers
that pause in turn wait 50 ms in every sixteenth pass, each in another one. The lease of a lost trainer is one second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

import trainer_client as tc
from benchmarks import options
from benchmarks.process import Child, ChildFailed, Children
from ps_wire.policies import from_plain, to_plain

TRAINERS: Final = 4
SLOW_SECONDS: Final = 0.05
FAST_SECONDS: Final = 0.005
PAUSE_EVERY: Final = 16
"""Trainers that pause in turn pause once in this many passes."""

_LEASE_SECONDS: Final = 1.0
_PATIENCE: Final = 60.0

POLICIES: Final[dict[str, tc.policies.Policy]] = {
    "Async()": tc.policies.Async(),
    "Sync(4)": tc.policies.Sync(4),
    "BoundedStaleness(8)": tc.policies.BoundedStaleness(8),
    "Quorum(3, of=4)": tc.policies.Quorum(3, of=4),
    "Quorum(32)": tc.policies.Quorum(32),
}


class Rates(NamedTuple):
    """Passes per second of one run.

    Attributes:
        fast: Of the slowest of the trainers that are neither slow nor killed.
        slow: Of the slow one; 0 if there is none.
        longest: The longest pass of a trainer that was not killed, in seconds.
    """

    fast: float
    slow: float
    longest: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs every policy and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a run (4)")
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.trainer:
        asyncio.run(train(**json.loads(chosen.trainer)))
        return 0
    options.interrupt_on_sigterm()
    console = Console()
    try:
        measured = {name: [run(policy, case, chosen.seconds) for case in CASES] for name, policy in POLICIES.items()}
    except ChildFailed as failure:
        console.print(str(failure), style="red", highlight=False, markup=False, soft_wrap=True)
        return 1
    _show(measured, console)
    return 0


CASES: Final = ("equal", "one slow", "pauses in turn", "one killed")


def waits(case: str, number: int) -> list[float]:
    """How long a trainer waits in its passes, in seconds; after the last one it begins again with the first."""
    if case == "one slow" and number == TRAINERS - 1:
        return [SLOW_SECONDS]
    if case == "pauses in turn":
        of_pause = number * PAUSE_EVERY // TRAINERS
        return [SLOW_SECONDS if each == of_pause else FAST_SECONDS for each in range(PAUSE_EVERY)]
    return [FAST_SECONDS]


def run(policy: tc.policies.Policy, case: str, seconds: float) -> Rates:
    """Measures one policy.

    Args:
        policy: The policy.
        case: One of `CASES`. A trainer is killed after a third of the time.
        seconds: How long it runs.

    Raises:
        ChildFailed: A process ended, or gave no answer.
    """
    with tempfile.TemporaryDirectory() as folder, Children(Path(folder), torch_threads=1) as children:
        owner = children.start(
            "owner", "ps_service", "serve", "--listen", "127.0.0.1:0", "--lease-seconds", str(_LEASE_SECONDS),
            listens=False,
        )  # fmt: skip
        address = owner.line(timeout=120).split()[-1]
        trainers = []
        for number in range(TRAINERS):
            asked = {
                "address": address,
                "policy": to_plain(policy),
                "waits": waits(case, number),
                "seconds": seconds,
            }
            trainers.append(children.start(f"trainer{number}", "benchmarks.policies", "--trainer", json.dumps(asked)))
        for trainer in trainers:
            trainer.receive(_PATIENCE)
        for trainer in trainers:
            trainer.send(go=True)
        if case == "one killed":
            _kill_later(trainers.pop(), seconds / 3)
        told = [trainer.receive(_PATIENCE + seconds) for trainer in trainers]
    slow = [told.pop()] if case == "one slow" else []
    return Rates(
        fast=min(each["rate"] for each in told),
        slow=slow[0]["rate"] if slow else 0.0,
        longest=max(each["longest"] for each in (*told, *slow)),
    )


def _kill_later(trainer: Child, seconds: float) -> None:
    time.sleep(seconds)
    os.kill(trainer.pid, signal.SIGKILL)


async def train(address: str, policy: dict[str, Any], waits: list[float], seconds: float) -> None:
    """A trainer: says that it is ready, waits for the signal, trains, and prints what it achieved."""
    async with tc.connect(address, timeout=8) as ps:
        net = await ps.module(torch.nn.Linear, 64, 64, name="net", seed=0)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.01, policy=from_plain(policy))
        _say(ready=True)
        await asyncio.to_thread(sys.stdin.readline)
        began = time.monotonic()
        passes, longest = 0, 0.0
        while (now := time.monotonic()) < began + seconds:
            async with ps.context() as ctx:
                loss = (await net(torch.ones(8, 64))).square().mean()
                await ctx.backward(loss)
                await asyncio.sleep(waits[passes % len(waits)])
                await opt.step(ctx)
            passes += 1
            longest = max(longest, time.monotonic() - now)
        elapsed = time.monotonic() - began
        await opt.leave()
        _say(rate=passes / elapsed, longest=longest)


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def _show(measured: dict[str, list[Rates]], console: Console) -> None:
    table = Table(header_style="bold", box=MARKDOWN)
    titles = (
        "equal",
        "one slow: others",
        "one slow: itself",
        "pauses in turn",
        "one killed: others",
        "longest wait, s",
    )
    for title in ("policy", *titles):
        table.add_column(title, justify="left" if title == "policy" else "right", no_wrap=title == "policy")
    for policy, (equal, slow, pauses, killed) in measured.items():
        rates = (equal.fast, slow.fast, slow.slow, pauses.fast, killed.fast)
        table.add_row(policy, *(f"{rate:.1f}" for rate in rates), f"{killed.longest:.2f}")
    console.print(table)
    console.print("passes per second of each trainer; the longest pass of a trainer while another was killed")


if __name__ == "__main__":
    sys.exit(main())
