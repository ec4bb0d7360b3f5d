"""The values that trainers report with gradients for one optimizer: each counts once, if its gradients count."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from ps_service.measures.curves import CurveNews, Curves, News, OptimizerCurves
from ps_wire.codec.trees import leaves_in
from ps_wire.errors import InvalidArgumentError, TooLargeError
from ps_wire.limits import MAX_REPORTED_NAMES
from ps_wire.numerics.reducer import Kind, Reducer, kind_of

if TYPE_CHECKING:
    from ps_wire.reported import Reported

MOST_KEPT: Final = 1024
"""The most trainers whose values are kept under one name."""

MOST_KEPT_BYTES: Final = 16 << 20
"""The most bytes of values that are kept, but for the last value under each name."""


@dataclass(slots=True, eq=False)
class Report:
    """The values of one gradient by name. While it is open it is not decided whether they count."""

    trainer: bytes
    values: Mapping[str, Reported]
    is_open: bool = True


class Totals(NamedTuple):
    """The values of all gradients that have counted since the last reset, reduced by name; how many gradients came with
    each, and how many with any."""

    values: dict[str, Any]
    counts: dict[str, int]
    gradients: int


@dataclass(slots=True, eq=False)
class _Use:
    """How a name is used, and by how many gradients that are not decided."""

    reduce: str
    kind: Kind | None
    reports: int = 0


class ReportedValues:
    """The reported values of one optimizer. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: dict[str, _Use] = {}
        self._total = Tally()
        self._curves: OptimizerCurves | None = None

    def show_in(self, curves: Curves, name: str, class_name: str) -> None:
        """The values of rounds go into curves from now on, under the name of the optimizer."""
        self._curves = OptimizerCurves(curves, self._lock, name, class_name)

    def show(self, version: int, values: Mapping[str, float]) -> None:
        """Adds values that came without gradients to the curves; they count nowhere else."""
        if self._curves is not None:
            with self._lock:
                self._curves.add(version, values)

    def told(self) -> list[CurveNews]:
        """All curves, whole."""
        found = News([], [], [], 0)
        if self._curves is not None:
            self._curves.tell({}, found)
        return found.fresh

    def restore(self, curves: Iterable[CurveNews]) -> None:
        """Has the curves that `told` has returned, before the first value. Raises `ValueError` if they are none."""
        if self._curves is not None:
            with self._lock:
                self._curves.restore(curves)

    def end(self) -> None:
        """The optimizer is gone; its curves stay."""
        if self._curves is not None:
            self._curves.is_ended = True

    def expect(self, trainer: bytes, values: Mapping[str, Reported]) -> Report | None:
        """Takes the values of gradients of which is not known yet whether they count; None if there are none. `count`
        or `drop` has to follow. Raises `InvalidArgumentError` if a value is reduced in another way, or of another kind,
        than those under its name, and `TooLargeError` if there would be too many names."""
        if not values:
            return None
        with self._lock:
            new = {}
            for name, (reduce, value) in values.items():
                kind = None if reduce == "keep" else kind_of(value)
                use = self._uses.get(name)
                if use is None:
                    new[name] = _Use(reduce, kind)
                elif use.reduce != reduce:
                    raise InvalidArgumentError(
                        f"{name!r} is reduced by {use.reduce!r} since its first gradient, not by {reduce!r}; choose "
                        "another name, or read the values with reset first"
                    )
                elif use.kind != kind:
                    raise InvalidArgumentError(f"{name!r} is {use.kind} since its first gradient, and not {kind}")
            if len(self._uses) + len(new) > MAX_REPORTED_NAMES:
                raise TooLargeError(
                    f"there would be more than {MAX_REPORTED_NAMES} names of values for this optimizer; use fewer, "
                    "or read the values with reset"
                )
            self._uses.update(new)
            for name in values:
                self._uses[name].reports += 1
            return Report(trainer, values)

    def drop(self, report: Report | None) -> None:
        """The gradients of a report do not count. Does nothing if they have counted or were dropped before."""
        if report is not None:
            with self._lock:
                if report.is_open:
                    report.is_open = False
                    self._free(dict.fromkeys(report.values, 1))

    def pool(self, tally: Tally, report: Report | None) -> None:
        """Adds a report to those of an open round. `count` or `drop_pool` has to follow for the tally."""
        if report is not None and report.is_open:
            report.is_open = False
            tally.add(report.trainer, report.values)

    def drop_pool(self, tally: Tally) -> None:
        """The gradients of an open round do not count."""
        with self._lock:
            self._free(tally.counts)

    def count(self, version: int, reports: Iterable[Report | None], pooled: Tally | None = None) -> dict[str, Any]:
        """Counts the values of a round that has led to a version, and returns them reduced by name. The order of the
        reports must not depend on when they came; others were pooled before."""
        tally = pooled or Tally()
        for report in reports:
            self.pool(tally, report)
        if not tally.gradients:
            return {}
        values, counts = tally.values(), dict(tally.counts)
        with self._lock:
            self._total.merge(tally)
            self._free(counts)
            if self._curves is not None:
                self._curves.add(version, values)
        return values

    def read(self, reset: bool) -> Totals:
        """The values of all gradients that have counted since the last reset. With `reset`, the next read begins anew,
        and names that no waiting gradients use are free again."""
        with self._lock:
            total = self._total
            found = Totals(total.values(), dict(total.counts), total.gradients)
            if reset:
                self._total = Tally()
                self._uses = {name: use for name, use in self._uses.items() if use.reports}
            return found

    def _free(self, counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            self._uses[name].reports -= count


class Tally:
    """Reduces reported values, of one kind under each name, as `ReportedValues` sees to. For one thread at a time.

    `counts` says how many gradients came with a value, by its name, and `gradients` how many with any.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.gradients = 0
        self._reducers: dict[str, Reducer] = {}
        self._kept: dict[str, OrderedDict[bytes, Any]] = {}
        self._kept_bytes = 0

    def add(self, trainer: bytes, values: Mapping[str, Reported]) -> None:
        """Adds the values that came with one gradient."""
        self.gradients += 1
        for name, (reduce, value) in values.items():
            self.counts[name] += 1
            if reduce == "keep":
                self._keep(name, trainer, value)
            else:
                self._reducers.setdefault(name, Reducer(reduce)).add(value)

    def merge(self, other: Tally) -> None:
        """Adds all that another one has, which is not used afterwards."""
        self.gradients += other.gradients
        self.counts.update(other.counts)
        for name, reducer in other._reducers.items():
            self._reducers.setdefault(name, Reducer(reducer.op)).merge(reducer)
        for name, kept in other._kept.items():
            for trainer, value in kept.items():
                self._keep(name, trainer, value)

    def values(self) -> dict[str, Any]:
        """The reduced values by name; those that are kept, by trainer."""
        reduced = {name: reducer.result for name, reducer in self._reducers.items()}
        found = reduced | {name: _titled(of) for name, of in self._kept.items()}
        return {name: found[name] for name in self.counts}

    def _keep(self, name: str, trainer: bytes, value: Any) -> None:
        """Keeps the latest value of a trainer. Of too many or too large ones, the oldest under the name is dropped."""
        kept = self._kept.setdefault(name, OrderedDict())
        if trainer in kept:
            self._kept_bytes -= size(kept.pop(trainer))
        kept[trainer] = value
        self._kept_bytes += size(value)
        while len(kept) > MOST_KEPT or (self._kept_bytes > MOST_KEPT_BYTES and len(kept) > 1):
            _, dropped = kept.popitem(last=False)
            self._kept_bytes -= size(dropped)


def size(value: Any) -> int:
    """About the bytes of a value. Elements of a tensor that are only repeated count."""
    total = 64
    for leaf in leaves_in(value):
        total += 64
        if isinstance(leaf, torch.Tensor):
            total += leaf.numel() * leaf.element_size()
        elif isinstance(leaf, (str, bytes)):
            total += len(leaf)
    return total


def _titled(kept: Mapping[bytes, Any]) -> dict[str, Any]:
    """Values by the first digits of trainers; a number is added where several trainers have the same."""
    found: dict[str, Any] = {}
    for trainer, value in kept.items():
        title = name = trainer.hex()[:8]
        again = 2
        while name in found:
            name, again = f"{title}~{again}", again + 1
        found[name] = value
    return found
