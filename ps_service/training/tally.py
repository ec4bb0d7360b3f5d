"""What trainers have reported with a number of gradients, reduced by name."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_wire.codec.trees import leaves_in
from ps_wire.numerics.reducer import Reducer

if TYPE_CHECKING:
    from ps_wire.reported import Reported

MOST_KEPT: Final = 1024
"""The most trainers whose values are kept under one name."""

MOST_KEPT_BYTES: Final = 16 << 20
"""The most bytes of values that are kept, but for the last value under each name."""


class Tally:
    """Reduces reported values. All values under one name are of one kind, as `ReportedValues` sees to.

    Not safe from several threads.

    Attributes:
        counts: How many gradients came with a value, by its name.
        gradients: How many gradients came with any value.
    """

    def __init__(self) -> None:
        self.counts: defaultdict[str, int] = defaultdict(int)
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
                self._reducer(name, reduce).add(value)

    def merge(self, other: Tally) -> None:
        """Adds all that another one has, which is not used afterwards."""
        self.gradients += other.gradients
        for name, count in other.counts.items():
            self.counts[name] += count
        for name, reducer in other._reducers.items():
            self._reducer(name, reducer.op).merge(reducer)
        for name, kept in other._kept.items():
            for trainer, value in kept.items():
                self._keep(name, trainer, value)

    def values(self, title: Callable[[bytes], str]) -> dict[str, Any]:
        """The reduced values by name; those that are kept, by trainer.

        Args:
            title: The name of a trainer.
        """
        reduced = {name: reducer.result for name, reducer in self._reducers.items()}
        kept = {name: _titled(of, title) for name, of in self._kept.items()}
        return {name: reduced[name] if name in reduced else kept[name] for name in self.counts}

    def _reducer(self, name: str, op: str) -> Reducer:
        reducer = self._reducers.get(name)
        if reducer is None:
            reducer = self._reducers[name] = Reducer(op)
        return reducer

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
        if isinstance(leaf, torch.Tensor):
            total += 64 + leaf.numel() * leaf.element_size()
        elif isinstance(leaf, (str, bytes)):
            total += 64 + len(leaf)
        else:
            total += 64
    return total


def _titled(kept: Mapping[bytes, Any], title: Callable[[bytes], str]) -> dict[str, Any]:
    """Values by the names of trainers; a number is added where several trainers have the same name."""
    found: dict[str, Any] = {}
    for trainer, value in kept.items():
        name, again = title(trainer), 2
        while name in found:
            name, again = f"{title(trainer)}~{again}", again + 1
        found[name] = value
    return found
