"""The work of a trainer in its turns, timed and checked, with the same loops on every side.

Results are checked while the work is timed, and the time of the checks is subtracted. The rest is the time of the loop
without checks, including the freeing of results.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Final, Protocol

import torch
from torch import Tensor

from benchmarks.data import Batch

OVERLAPPED: Final = 2
"""Passes in flight in `convnet_step_overlapped`."""

LOST: Final = "lost"
"""Key, in the results of several trainers, of the number of passes that were refused and had to be repeated."""


class Mismatch(AssertionError):
    """A result is wrong."""


class Work(Protocol):
    """The work of one row on one side."""

    def turn(self, count: int) -> float:
        """Runs `count` operations; returns their seconds.

        Raises:
            Mismatch: A result is wrong.
        """

    def result(self) -> dict[str, Tensor]:
        """The results to compare with those of local torch."""


class Pause:
    """Sleeps between the phases of local work, so that its kernels run with caches as cold as those of an owner.

    An owner waits for a message before each phase. The time of the pauses is not part of a result.

    Args:
        length: Seconds of a pause.

    Attributes:
        seconds: Time of all pauses until now.
    """

    def __init__(self, length: float) -> None:
        self._length = length
        self.seconds = 0.0

    def __call__(self) -> None:
        """Sleeps, if its length is not 0."""
        if self._length:
            began = perf_counter()
            time.sleep(self._length)
            self.seconds += perf_counter() - began


NO_PAUSE: Final = Pause(0.0)


class Calls:
    """Empty calls, one after the other."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def turn(self, count: int) -> float:
        call = self._call
        began = perf_counter()
        for _ in range(count):
            if call() is not None:
                raise Mismatch("an empty call returned something")
        return perf_counter() - began

    def result(self) -> dict[str, Tensor]:
        return {}


class AwaitedCalls:
    """Empty calls, awaited one after the other in a running loop."""

    def __init__(self, runner: asyncio.Runner, call: Callable[[], Awaitable[object]]) -> None:
        self._runner = runner
        self._call = call

    def turn(self, count: int) -> float:
        return self._runner.run(self._turn(count))

    async def _turn(self, count: int) -> float:
        call = self._call
        began = perf_counter()
        for _ in range(count):
            if await call() is not None:
                raise Mismatch("an empty call returned something")
        return perf_counter() - began

    def result(self) -> dict[str, Tensor]:
        return {}


class Bursts:
    """Bursts of many small calls.

    Args:
        burst: Calls `increment` with each number, all of them in flight together, and returns their results.
        size: Calls per burst.
    """

    def __init__(self, burst: Callable[[range], Sequence[int]], size: int) -> None:
        self._burst = burst
        self._size = size
        self._first = 0

    def turn(self, count: int) -> float:
        seconds = 0.0
        for _ in range(count):
            numbers = range(self._first, self._first + self._size)
            began = perf_counter()
            results = self._burst(numbers)
            seconds += perf_counter() - began
            if list(results) != [number + 1 for number in numbers]:
                raise Mismatch("calls in flight got wrong results, or one another's")
            self._first += self._size
        return seconds

    def result(self) -> dict[str, Tensor]:
        return {}


class Echoes:
    """Sends a tensor there and back; every echo is compared bit by bit.

    Args:
        echo: Sends a tensor there and back.
        size: Its bytes.
    """

    def __init__(self, echo: Callable[[Tensor], Tensor], size: int) -> None:
        self._echo = echo
        # Integers with random bits, because floats would hide differences between NaNs.
        generator = torch.Generator().manual_seed(size)
        self._payload = torch.randint(-(1 << 31), 1 << 31, (size // 4,), dtype=torch.int32, generator=generator)
        self._sent = 0

    def turn(self, count: int) -> float:
        unpaid = 0.0
        began = perf_counter()
        for _ in range(count):
            echoed = self._echo(self._payload)
            checking = perf_counter()
            self._check(echoed)
            self._change()
            unpaid += perf_counter() - checking
            del echoed
        return perf_counter() - began - unpaid

    def _check(self, echoed: Tensor) -> None:
        if echoed.dtype != torch.int32 or not torch.equal(echoed, self._payload):
            raise Mismatch(f"the echo of {4 * len(self._payload)} bytes came back changed")

    def _change(self) -> None:
        # Successive echoes differ, so that old contents of a reused buffer cannot pass for an answer.
        self._sent += 1
        self._payload[self._sent * 997 % len(self._payload)] += 1
        self._payload[-1] += 1

    def result(self) -> dict[str, Tensor]:
        return {}


class Forwards:
    """Forwards of batches in turn, without gradients.

    Args:
        forward: The forward.
        batches: Its inputs; the second of each pair is not used.
        pause: Comes before each forward.
    """

    def __init__(self, forward: Callable[[Tensor], Tensor], batches: Sequence[Batch], pause: Pause = NO_PAUSE) -> None:
        self._forward = forward
        self._batches = batches
        self._pause = pause
        self._outputs: dict[int, Tensor] = {}
        self._done = 0

    def turn(self, count: int) -> float:
        unpaid = -self._pause.seconds
        began = perf_counter()
        for _ in range(count):
            self._pause()
            place = self._done % len(self._batches)
            output = self._forward(self._batches[place][0])
            checking = perf_counter()
            self._done += 1
            # The first output of each batch is compared with that of local torch, all later ones with the first.
            first = self._outputs.setdefault(place, output.detach().clone())
            if not torch.equal(first, output):
                raise Mismatch("the same forward gave two different outputs")
            unpaid += perf_counter() - checking
            del output
        return perf_counter() - began - unpaid - self._pause.seconds

    def result(self) -> dict[str, Tensor]:
        self.turn(len(self._batches))
        return {f"output {place}": self._outputs[place] for place in sorted(self._outputs)}


class Steps:
    """Full steps of training on batches in turn; all losses are kept.

    Args:
        step: One step; returns its loss.
        batches: Inputs and targets.
        parameters: Reads the parameters, or part of them, to be compared at the end.
        pause: The pauses that the step makes.
    """

    def __init__(
        self,
        step: Callable[[Tensor, Tensor], Tensor],
        batches: Sequence[Batch],
        parameters: Callable[[], dict[str, Tensor]],
        pause: Pause = NO_PAUSE,
    ) -> None:
        self._step = step
        self._batches = batches
        self._parameters = parameters
        self._pause = pause
        self._losses: list[float] = []

    def turn(self, count: int) -> float:
        paused = self._pause.seconds
        began = perf_counter()
        for _ in range(count):
            loss = self._step(*self._batches[len(self._losses) % len(self._batches)])
            self._losses.append(loss.item())
        return perf_counter() - began - (self._pause.seconds - paused)

    def result(self) -> dict[str, Tensor]:
        return {"losses": torch.tensor(self._losses), **self._parameters()}


class OverlappedSteps(Steps):
    """The same as `Steps`, with `OVERLAPPED` steps at once, each in a thread."""

    def turn(self, count: int) -> float:
        first = len(self._losses)
        batches = [self._batches[place % len(self._batches)] for place in range(first, first + count)]
        began = perf_counter()
        with ThreadPoolExecutor(OVERLAPPED) as threads:
            self._losses += threads.map(lambda batch: self._step(*batch).item(), batches)
        return perf_counter() - began


class AwaitedSteps:
    """The same as `Steps`, with steps that are awaited in a running loop.

    Args:
        runner: Runs the loop.
        step: One step; returns its loss.
        batches: Inputs and targets.
        parameters: Reads the parameters.
        at_once: Number of tasks that take steps together.
    """

    def __init__(
        self,
        runner: asyncio.Runner,
        step: Callable[[Tensor, Tensor], Awaitable[Tensor]],
        batches: Sequence[Batch],
        parameters: Callable[[], Awaitable[dict[str, Tensor]]],
        at_once: int = 1,
    ) -> None:
        self._runner = runner
        self._step = step
        self._batches = batches
        self._parameters = parameters
        self._at_once = at_once
        self._losses: list[float] = []

    def turn(self, count: int) -> float:
        return self._runner.run(self._turn(count))

    async def _turn(self, count: int) -> float:
        first = len(self._losses)
        batches = iter([self._batches[place % len(self._batches)] for place in range(first, first + count)])
        began = perf_counter()
        if self._at_once == 1:
            await self._steps(batches)
        else:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._at_once):
                    tasks.create_task(self._steps(batches))
        return perf_counter() - began

    async def _steps(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            loss = await self._step(*batch)
            self._losses.append(loss.item())

    def result(self) -> dict[str, Tensor]:
        return {"losses": torch.tensor(self._losses), **self._runner.run(_awaited(self._parameters()))}


async def _awaited(values: Awaitable[dict[str, Tensor]]) -> dict[str, Tensor]:
    return await values
