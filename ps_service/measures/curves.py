"""The curves of all values that trainers report to an owner, by optimizer: a bounded number of them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ps_service.measures.curve import Curve, Points, first_changed

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

MOST_VALUES: Final = 16
"""Most values of one optimizer that have a curve."""

MOST_CURVES: Final = 256
"""Most curves of an owner. Those of optimizers that are gone make room for others, the oldest first."""

LONGEST_NAME: Final = 128
"""Most characters of the name of an optimizer that are kept."""

_NUMBERS: Final = (int, float)


class CurveNews(NamedTuple):
    """What somebody does not know of a curve: its points from `start` on. The `number` is its own on this owner."""

    number: int
    optimizer: str
    class_name: str
    name: str
    seen: int
    width: int
    start: int
    points: Points


class News(NamedTuple):
    """What somebody does not know of all curves, the numbers of all, and of those whose optimizers are gone.
    `left_out` counts the reported values that have no curve, because there were too many."""

    fresh: list[CurveNews]
    numbers: list[int]
    ended: list[int]
    left_out: int


class Curves:
    """The curves of an owner, which stay when their optimizer is gone, while there is room. Safe from several threads.

    `left_out` counts the reported values that have no curve.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.left_out = 0
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._of: list[OptimizerCurves] = []
        self._size = 0

    def news(self, known: Mapping[int, int], wanted: Callable[[str], bool] | None = None) -> News:
        """What somebody does not know that has seen so many values of the curves with these numbers; of optimizers
        with `wanted` names alone."""
        with self._lock:
            of, left_out = list(self._of), self.left_out
        found = News([], [], [], left_out)
        for each in of:
            if wanted is None or wanted(each.name):
                each.tell(known, found)
        return found

    def number(self, of: OptimizerCurves) -> int:
        """The number of one more curve; 0 if there is no room for it."""
        with self._lock:
            gone = [each for each in self._of if each.is_ended and each is not of]
            while self._size >= MOST_CURVES and gone:
                self._of.remove(oldest := gone.pop(0))
                self._size -= len(oldest)
            if self._size >= MOST_CURVES:
                return 0
            if of not in self._of:
                self._of.append(of)
            self._size += 1
            return next(self._numbers)

    def leave_out(self) -> None:
        """Counts a value that has no curve."""
        with self._lock:
            self.left_out += 1


class OptimizerCurves:
    """The curves of one optimizer, guarded by the lock that is given, which who adds values has taken.

    Before the first value it takes no room. `is_ended` says that the optimizer is gone.
    """

    def __init__(self, curves: Curves, lock: AbstractContextManager[Any], name: str, class_name: str) -> None:
        self.name = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
        self.class_name = class_name[:LONGEST_NAME]
        self.is_ended = False
        self._curves = curves
        self._lock = lock
        self._by_name: dict[str, tuple[int, Curve]] = {}

    def __len__(self) -> int:
        """The number of curves."""
        return len(self._by_name)

    def add(self, version: int, values: Mapping[str, Any]) -> None:
        """Adds the values of a round, which led to a version: of those that are numbers, and of tensors of one number.
        Called with the lock held."""
        now = self._curves.clock()
        for name, value in values.items():
            if not isinstance(value, _NUMBERS) and (value := _number_in(value)) is None:
                continue
            known = self._by_name.get(name)
            if known is None and (known := self._begun(name)) is None:
                self._curves.leave_out()
                continue
            known[1].add(version, _as_float(value), now)

    def tell(self, known: Mapping[int, int], found: News) -> None:
        """Adds what somebody does not know that has seen so many values of the curves with these numbers."""
        with self._lock:
            for name, (number, curve) in self._by_name.items():
                found.numbers.append(number)
                if self.is_ended:
                    found.ended.append(number)
                if (before := known.get(number, 0)) == curve.seen:
                    continue
                start = first_changed(before, curve.seen) if before < curve.seen else 0
                points = curve.points(start)
                about = (number, self.name, self.class_name, name)
                found.fresh.append(CurveNews(*about, curve.seen, curve.width, start, points))

    def restore(self, curves: Iterable[CurveNews]) -> None:
        """Has these curves, where there is room. Called with the lock held. Raises `ValueError` for other points."""
        for told in curves:
            curve = Curve.of(told.seen, told.width, told.points)
            if (begun := self._begun(told.name)) is not None:
                self._by_name[told.name] = begun[0], curve

    def _begun(self, name: str) -> tuple[int, Curve] | None:
        if len(self._by_name) >= MOST_VALUES or not (number := self._curves.number(self)):
            return None
        self._by_name[name] = number, Curve()
        return self._by_name[name]


def _number_in(value: Any) -> Any:
    """The number in a tensor of one element that is not complex; None in anything else."""
    elements = getattr(value, "numel", None)
    return value.item() if elements is not None and elements() == 1 and not value.is_complex() else None


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return float("inf")
