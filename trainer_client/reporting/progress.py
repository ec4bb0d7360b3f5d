"""`progress`: goes through the batches of a training loop, and shows how it goes on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from trainer_client.reporting.bars import Bar, bar_for
from trainer_client.reporting.meter import Meter, StepNumbers

if TYPE_CHECKING:
    from trainer_client.session.stepped import Stepped

T = TypeVar("T")

Callback = Callable[[StepNumbers], None]
"""Is called with the numbers of every step."""

_SHOWN_SECONDS: Final = 0.1
"""Seconds between two states that are shown."""


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
    ) -> None:
        self._batches = batches
        self._total = total
        self._description = description
        self._callbacks = callbacks
        self._make_bar = bar
        self._clock = clock
        self._meter = Meter(clock)
        self._done = 0
        self._shown = 0.0

    def step(self, stepped: Stepped | None = None, **values: Any) -> StepNumbers:
        """Tells what became of a step; call it once for each.

        Args:
            stepped: What the step of the optimizer has returned; None if it was skipped.
            values: Values to show by name, such as `loss=loss`: numbers, or tensors of one element. The bar shows their
                means over the last 20 steps.

        Returns:
            The numbers of the step, as callbacks get them.
        """
        numbers = self._meter.step(stepped, values)
        for each in self._callbacks:
            each(numbers)
        return numbers

    def __iter__(self) -> Iterator[T]:
        if not isinstance(self._batches, Iterable):
            raise TypeError("these batches come asynchronously: use `async for`")
        bar = self._make_bar(self._total, self._description)
        try:
            for batch in self._batches:
                yield batch
                self._finished_one(bar)
        finally:
            self._close(bar)

    async def __aiter__(self) -> AsyncIterator[T]:
        bar = self._make_bar(self._total, self._description)
        try:
            if isinstance(self._batches, AsyncIterable):
                async for batch in self._batches:
                    yield batch
                    self._finished_one(bar)
            else:
                for batch in self._batches:
                    yield batch
                    self._finished_one(bar)
        finally:
            self._close(bar)

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

    def _close(self, bar: Bar) -> None:
        bar.show(self._done, str(self._meter))
        bar.close()


def progress(
    batches: Iterable[T] | AsyncIterable[T],
    *,
    total: int | None = None,
    description: str = "",
    callbacks: Sequence[Callback] = (),
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
    """
    if total is None and isinstance(batches, Sized):
        total = len(batches)
    return Progress(batches, total, description, callbacks)
