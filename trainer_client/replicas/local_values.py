"""Values that a program reports with local steps: what comes between two pushes is reduced here, and pushed once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ps_wire.errors import InvalidArgumentError, TooLargeError
from ps_wire.limits import MAX_REPORTED_NAMES
from ps_wire.numerics.reducer import Kind, Reducer, kind_of
from ps_wire.reported import Reductions, Reported, reported


class LocalValues:
    """The values of the local steps since the last push. Not safe from several threads.

    Under one name, values are averaged or summed, or the latest is kept, as the owner does with those of trainers.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[str, Kind | None]] = {}
        self._reducers: dict[str, Reducer] = {}
        self._kept: dict[str, Any] = {}

    def read(self, values: Mapping[str, Any] | None, reduce: Reductions) -> dict[str, Reported]:
        """Checks the values of one local step, which `add` takes then.

        Args:
            values: Plain values by name; None for none.
            reduce: How they are reduced, as for `DistributedOptimizer.step`.

        Raises:
            InvalidArgumentError: A value cannot be reduced so, or does not fit those that came under its name since the
                last push.
            TooLargeError: There are too many names.
        """
        made = reported(values, reduce) if values else {}
        for name, each in made.items():
            known, now = self._kinds.get(name), _kind(each)
            if known is not None and known != now:
                raise InvalidArgumentError(
                    f"{name!r} is {known[1] or 'any value'}, reduced by {known[0]!r}, since the last push, and now it "
                    f"is {now[1] or 'any value'}, reduced by {now[0]!r}"
                )
        if len(self._kinds.keys() | made.keys()) > MAX_REPORTED_NAMES:
            raise TooLargeError(f"local steps report at most {MAX_REPORTED_NAMES} names of values between two pushes")
        return made

    def add(self, values: Mapping[str, Reported]) -> None:
        """Adds the values of one local step, as `read` has returned them."""
        for name, each in values.items():
            self._kinds[name] = _kind(each)
            if each.reduce == "keep":
                self._kept[name] = each.value
            else:
                self._reducers.setdefault(name, Reducer(each.reduce)).add(each.value)

    def reduced(self) -> dict[str, Reported]:
        """One value for each name, to be pushed."""
        found = {name: Reported(each.op, each.result) for name, each in self._reducers.items()}
        return found | {name: Reported("keep", value) for name, value in self._kept.items()}

    def clear(self) -> None:
        """Begins anew, because the values were pushed."""
        self._kinds, self._reducers, self._kept = {}, {}, {}


def _kind(value: Reported) -> tuple[str, Kind | None]:
    """What the values under one name have in common."""
    return value.reduce, None if value.reduce == "keep" else kind_of(value.value)
