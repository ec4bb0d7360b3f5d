"""Kills the owner again and again during the training."""

from __future__ import annotations

import asyncio
import bisect
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from rich import box
from rich.table import Table

import trainer_client as tc
from examples.digits.owner import Owner
from examples.digits.report import ChaosReport

REPEATED = "a pass was lost and is run again"
"""What the client of a trainer logs whenever it repeats a pass."""


@dataclass(frozen=True)
class Kill:
    """One kill; times in seconds."""

    at: float
    back: float
    """When the owner served again."""


async def watch(
    owner: Owner, begun: asyncio.Event, over: asyncio.Event, every: float | None, most: int | None = None
) -> list[Kill]:
    """Waits until the training is over, and kills the owner whenever it has served for so many seconds of it.

    Args:
        owner: It serves, and does so again at the end.
        begun: Set when the trainers have begun.
        over: Set when they have ended.
        every: Seconds from one start to the next kill; None: the owner is not killed.
        most: How often it is killed; None: until the training is over.

    Returns:
        The kills, in times of `time.perf_counter`.

    Raises:
        ChildFailed: The owner has ended by itself, or does not start again.
    """
    kills: list[Kill] = []
    await _serves(owner, over if every is None else begun, None)
    while not over.is_set() and not await _serves(owner, over, None if len(kills) == most else every):
        at = time.perf_counter()
        await owner.kill()
        await owner.start()
        kills.append(Kill(at, time.perf_counter()))
    return kills


async def _serves(owner: Owner, event: asyncio.Event, seconds: float | None) -> bool:
    """Whether an event comes within so many seconds. Raises `ChildFailed` if the owner ends before."""
    waiting = asyncio.create_task(event.wait())
    ending = asyncio.create_task(owner.ended())
    try:
        done, _ = await asyncio.wait([waiting, ending], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if ending in done:
            raise ending.result()
        return waiting in done
    finally:
        for task in (waiting, ending):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def pauses(kills: Sequence[Kill], times: Sequence[Sequence[float]]) -> list[float]:
    """What the trainers have seen of the kills: seconds from the last step before to the first one after.

    Args:
        kills: The kills.
        times: When each trainer's steps were taken. One that has not begun, or has finished, sees no pause.
    """
    found = []
    for kill in kills:
        middle = (kill.at + kill.back) / 2  # a step that was made before the kill may be told after it
        for steps in times:
            place = bisect.bisect(steps, middle)
            if 0 < place < len(steps):
                found.append(steps[place] - steps[place - 1])
    return found


async def version(address: str) -> int:
    """The number of steps that the owner's optimizer has applied."""
    async with tc.connect(address) as ps:
        (optimizer,) = (await ps.status()).optimizers
        return optimizer.version


def table(report: ChaosReport) -> Table:
    """The kills and what they have cost, for a terminal."""
    away = [back - at for at, back in report.kills]
    made = Table("", "median", "longest", "number", box=box.SIMPLE_HEAD, pad_edge=False)
    for what, seconds in (("the owner is killed and away, s", away), ("a trainer pauses, s", report.pauses)):
        made.add_row(what, *_median_and_longest(seconds), str(len(seconds)))
    made.add_row("a pass is run again", "", "", str(report.repeated))
    made.add_row("a step is acknowledged", "", "", str(report.steps))
    made.add_row("a step is applied", "", "", str(report.version))
    return made


def _median_and_longest(seconds: Sequence[float]) -> tuple[str, str]:
    return (f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}") if seconds else ("", "")
