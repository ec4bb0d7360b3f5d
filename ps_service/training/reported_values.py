"""The values that trainers report with gradients for one optimizer: each counts once, if its gradients count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ps_service.training.tally import Tally
from ps_wire.errors import InvalidArgumentError, TooLargeError
from ps_wire.limits import MAX_REPORTED_NAMES
from ps_wire.numerics.reducer import Kind, kind_of

if TYPE_CHECKING:
    from ps_wire.reported import Reported


class Report:
    """The values of one gradient.

    Attributes:
        trainer: Id of the trainer.
        values: The values by name.
        is_open: Whether it is not decided yet whether they count.
    """

    __slots__ = ("is_open", "trainer", "values")

    def __init__(self, trainer: bytes, values: Mapping[str, Reported]) -> None:
        self.trainer = trainer
        self.values = values
        self.is_open = True


class Totals(NamedTuple):
    """The values of all gradients that have counted since the last reset.

    Attributes:
        values: The reduced values by name.
        counts: How many gradients came with each.
        gradients: How many gradients came with any.
    """

    values: dict[str, Any]
    counts: dict[str, int]
    gradients: int


class _Use:
    """How a name is used, and by how many gradients that are not decided."""

    __slots__ = ("kind", "reduce", "reports")

    def __init__(self, reduce: str, kind: Kind | None) -> None:
        self.reduce = reduce
        self.kind = kind
        self.reports = 0


class ReportedValues:
    """The reported values of one optimizer. Safe from several threads.

    Attributes:
        title: The name of a trainer, in values that are kept.
    """

    def __init__(self) -> None:
        self.title: Callable[[bytes], str] = lambda trainer: trainer.hex()[:8]
        self._lock = threading.Lock()
        self._uses: dict[str, _Use] = {}
        self._total = Tally()

    def expect(self, trainer: bytes, values: Mapping[str, Reported]) -> Report | None:
        """Takes the values of gradients of which is not known yet whether they count. `count` or `drop` has to follow.

        All values under one name are reduced in the same way, and are numbers or tensors of the same shape and dtype.

        Returns:
            Them; None if there are none.

        Raises:
            InvalidArgumentError: A value does not fit those under its name.
            TooLargeError: There would be too many names.
        """
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
                self._end(report)

    def pool(self, tally: Tally, report: Report | None) -> None:
        """Adds a report to those of an open round. `count` or `drop_pool` has to follow for the tally."""
        if report is not None and report.is_open:
            report.is_open = False
            tally.add(report.trainer, report.values)

    def drop_pool(self, tally: Tally | None) -> None:
        """The gradients of an open round do not count."""
        if tally is not None:
            with self._lock:
                self._free(tally.counts)

    def count(self, reports: Iterable[Report | None], pooled: Tally | None = None) -> dict[str, Any]:
        """Counts the values of a round.

        Args:
            reports: Those of its gradients, in an order that does not depend on when they came.
            pooled: Reports that were pooled before.

        Returns:
            The values of the round, reduced by name.
        """
        tally = pooled or Tally()
        for report in reports:
            self.pool(tally, report)
        if not tally.gradients:
            return {}
        values, counts = tally.values(self.title), dict(tally.counts)
        with self._lock:
            self._total.merge(tally)
            self._free(counts)
        return values

    def read(self, reset: bool) -> Totals:
        """The values of all gradients that have counted since the last reset.

        Args:
            reset: Whether the next read begins anew. Names that no waiting gradients use are free again then.
        """
        with self._lock:
            total = self._total
            found = Totals(total.values(self.title), dict(total.counts), total.gradients)
            if reset:
                self._total = Tally()
                self._uses = {name: use for name, use in self._uses.items() if use.reports}
            return found

    def _end(self, report: Report) -> None:
        if report.is_open:
            report.is_open = False
            self._free(dict.fromkeys(report.values, 1))

    def _free(self, counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            self._uses[name].reports -= count
