"""`progress`: goes through the batches of a training loop, and shows how it goes on.

That is a bar of rich or of tqdm, whichever is installed, or lines where there is no terminal.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TextIO, TypeVar

import torch

from trainer_client.reporting.page import PageValues

if TYPE_CHECKING:
    from trainer_client.session.stepped import Stepped

LATEST: Final = 20
"""Steps over which shown values are averaged."""

_FOR_RATE: Final = 100
"""Most steps over which their rate is an average."""

_LINE_SECONDS: Final = 10.0
"""Seconds between two lines where there is no terminal."""

_SHOWN_SECONDS: Final = 0.1
"""Seconds between two states that are shown."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The numbers of one step.

    Attributes:
        step: Number of steps with this one, from 1.
        steps_per_second: Over the last 100 steps at most; 0 with the first.
        staleness: Steps of other trainers that the gradients had missed; None if the step was skipped.
        dropped: Steps so far whose gradients do not count.
        values: What the loop has given to `Progress.step`, as it has given it: numbers, or tensors of one element. And
            the numbers that were reported with the step (`values=`), of its whole round.
    """

    step: int
    steps_per_second: float
    staleness: int | None
    dropped: int
    values: Mapping[str, Any]


class Meter:
    """Collects the numbers of steps. Values are read only when they are shown, because that waits for a GPU."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=_FOR_RATE)
        self._staleness: deque[int] = deque(maxlen=LATEST)
        self._values: dict[str, deque[Any]] = {}
        self._steps = self._dropped = 0

    def step(self, stepped: Stepped | None, values: Mapping[str, Any]) -> StepNumbers:
        """Counts a step; its numbers."""
        self._steps += 1
        self._times.append(self._clock())
        staleness = None
        if stepped is not None:
            staleness = stepped.staleness
            self._staleness.append(staleness)
            self._dropped += bool(stepped.dropped)
        kept = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
        for name, value in kept.items():
            self._values.setdefault(name, deque(maxlen=LATEST)).append(value)
        return StepNumbers(self._steps, self.steps_per_second, staleness, self._dropped, kept)

    @property
    def steps_per_second(self) -> float:
        """Over the last 100 steps at most."""
        times = self._times
        seconds = times[-1] - times[0] if len(times) > 1 else 0.0
        return (len(times) - 1) / seconds if seconds > 0 else 0.0

    def __str__(self) -> str:
        """The numbers in one line. Values and staleness are means of the last 20 steps, which the line says."""
        if not self._steps:
            return ""
        parts = [f"{self.steps_per_second:.3g} steps/s"]
        parts += [f"{name} {_mean(values):.4g}" for name, values in self._values.items()]
        if self._staleness:
            parts.append(f"staleness {_mean(self._staleness):.3g}")
        over = max(map(len, (self._staleness, *self._values.values())))
        if over > 1:
            parts[-1] += f" (means of {over} steps)"
        if self._dropped:
            parts.append(f"{self._dropped:,} dropped")
        return ", ".join(parts)


def _mean(values: deque[Any]) -> float:
    return math.fsum(map(float, values)) / len(values)


Callback = Callable[[StepNumbers], None]
"""Is called with the numbers of every step."""


class Bar(Protocol):
    """Shows how many batches are done."""

    def show(self, done: int, numbers: str) -> None:
        """Shows how many batches are done, and the numbers of the steps, in one line."""

    def close(self) -> None:
        """Leaves the last state where it is."""


class RichBar:
    """A bar of rich. Raises `ImportError` if rich is not installed."""

    def __init__(self, total: int | None, description: str) -> None:
        # Not at the top: the import takes a tenth of a second, and most programs show no bar.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[numbers]}", markup=False),
            auto_refresh=False,
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(description, total=total, numbers="")
        self._progress.start()

    def show(self, done: int, numbers: str) -> None:
        self._progress.update(self._task, completed=done, numbers=numbers, refresh=True)

    def close(self) -> None:
        self._progress.stop()


class TqdmBar:
    """A bar of tqdm. Raises `ImportError` if tqdm is not installed."""

    def __init__(self, total: int | None, description: str) -> None:
        from tqdm.auto import tqdm  # type: ignore[import-untyped, import-not-found, unused-ignore]  # no types

        self._bar: Any = tqdm(total=total, desc=description or None)

    def show(self, done: int, numbers: str) -> None:
        self._bar.set_postfix_str(numbers, refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class Lines:
    """A line every ten seconds, and one at the end; on standard error, if `out` is None."""

    def __init__(
        self,
        total: int | None,
        description: str,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._of = "" if total is None else f"/{total:,}"
        self._description = f"{description}: " if description else ""
        self._out = out
        self._clock = clock
        self._next = clock() + _LINE_SECONDS
        self._last = ""
        self._written = ""

    def show(self, done: int, numbers: str) -> None:
        self._last = f"{self._description}{done:,}{self._of}{f', {numbers}' if numbers else ''}"
        if self._clock() >= self._next:
            self._next = self._clock() + _LINE_SECONDS
            self._write()

    def close(self) -> None:
        if self._last != self._written:
            self._write()

    def _write(self) -> None:
        self._written = self._last
        print(self._last, file=self._out or sys.stderr, flush=True)


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. A program that only imports ipykernel is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


def bar_for(total: int | None, description: str) -> Bar:
    """The bar of rich, else of tqdm; lines, if neither is installed or there is no terminal and no notebook."""
    if not (sys.stderr.isatty() or _in_notebook()):
        return Lines(total, description)
    for kind in (RichBar, TqdmBar):
        try:
            return kind(total, description)
        except ImportError:
            continue
    return Lines(total, description)


class Progress(Generic[T]):
    """The batches of a training loop, with a bar. Made by `progress`.

    The bar lives from the first batch to the last, or until the loop is left.
    """

    def __init__(
        self,
        batches: Iterable[T] | AsyncIterable[T],
        total: int | None,
        description: str,
        callbacks: Sequence[Callback],
        bar: Callable[[int | None, str], Bar] = bar_for,
        clock: Callable[[], float] = time.monotonic,
        optimizer: Any = None,
    ) -> None:
        self._batches = batches
        self._total = total
        self._description = description
        self._callbacks = callbacks
        self._make_bar = bar
        self._clock = clock
        self._meter = Meter(clock)
        self._page = None if optimizer is None else PageValues(optimizer, clock)
        self._done = 0
        self._shown = 0.0

    def step(self, stepped: Stepped | None = None, **values: Any) -> StepNumbers:
        """Tells what became of a step; call it once for each.

        Args:
            stepped: What the step of the optimizer has returned; None if it was skipped.
            values: Values to show by name, such as `loss=loss`: numbers, or tensors of one element. The bar shows their
                means over the last 20 steps. Numbers that were reported with the step (`values=`) are shown as well,
                as `Stepped.reported` has them, unless the same name is given here.

        Returns:
            The numbers of the step, as callbacks get them.
        """
        shown = values
        if stepped is not None and stepped.reported:
            shown = {name: each for name, each in stepped.reported.items() if isinstance(each, (int, float))} | values
        numbers = self._meter.step(stepped, shown)
        if self._page is not None:
            self._page.add(stepped, {name: numbers.values[name] for name in values})
        for each in self._callbacks:
            each(numbers)
        return numbers

    def __iter__(self) -> Iterator[T]:
        if isinstance(self._batches, AsyncIterable):
            raise TypeError("these batches come asynchronously: use `async for`")
        with self._bar() as bar:
            for batch in self._batches:
                yield batch
                self._finished_one(bar)

    async def __aiter__(self) -> AsyncIterator[T]:
        with self._bar() as bar:
            if isinstance(self._batches, AsyncIterable):
                async for batch in self._batches:
                    yield batch
                    self._finished_one(bar)
            else:
                for batch in self._batches:
                    yield batch
                    self._finished_one(bar)

    def __len__(self) -> int:
        if self._total is None:
            raise TypeError("the number of these batches is not known; give total= to progress()")
        return self._total

    def __repr__(self) -> str:
        of = "" if self._total is None else f" of {self._total}"
        numbers = str(self._meter)
        return f"<Progress {self._done}{of} batches{f', {numbers}' if numbers else ''}>"

    def _finished_one(self, bar: Bar) -> None:
        self._done += 1
        now = self._clock()
        if now - self._shown >= _SHOWN_SECONDS:
            self._shown = now
            bar.show(self._done, str(self._meter))

    @contextmanager
    def _bar(self) -> Iterator[Bar]:
        """Shows a bar until the end of the loop, and leaves its last state where it is."""
        bar = self._make_bar(self._total, self._description)
        try:
            yield bar
        finally:
            if self._page is not None:
                self._page.close()
            bar.show(self._done, str(self._meter))
            bar.close()


def progress(
    batches: Iterable[T] | AsyncIterable[T],
    *,
    total: int | None = None,
    description: str = "",
    callbacks: Sequence[Callback] = (),
    optimizer: Any = None,
) -> Progress[T]:
    """Goes through batches, and shows how many are done, how long it will take, and the numbers of the steps.

        bar = tc.progress(batches, description="epoch 1")
        for x, y in bar:
            async with ps.context() as ctx:
                loss = criterion(await net(x), y)
                await ctx.backward(loss)
                bar.step(await opt.step(ctx), loss=loss)

    In a terminal or a notebook it is a bar of rich or tqdm, whichever is installed. Elsewhere it is a line on standard
    error every ten seconds. `async for` goes through asynchronous batches, and through others, too.

    Args:
        batches: What the loop goes through.
        total: How many there are; their length if they have one.
        description: What stands before the bar.
        callbacks: Called with the `StepNumbers` of every step, such as a `TensorBoard`.
        optimizer: An optimizer whose curves on the page get the values that `Progress.step` is given, in one message a
            second. Values of steps that were skipped, or whose gradients do not count, are left out.

    Raises:
        InvalidArgumentError: The optimizer has tables only, or all of its parameters are in this process.
    """
    if total is None and isinstance(batches, Sized):
        total = len(batches)
    return Progress(batches, total, description, callbacks, optimizer=optimizer)
