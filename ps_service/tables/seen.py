"""When and how often rows were looked up, and which of them go first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch

from ps_service.tables.storage import RowStorage, make_rows

if TYPE_CHECKING:
    from ps_service.tables.rows import Rows
    from ps_wire.tables.lifecycle import Eviction

_BLOCK_ROWS: Final = 1 << 16
"""Rows whose norms are computed at once."""


def first(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The positions of the lowest scores, at most `count`, in their order; of equal ones the first positions."""
    if count >= len(scores) or not count:
        return torch.arange(min(count, len(scores)), device="cpu")
    # Only as many as are wanted are sorted, because there may be many millions.
    limit = torch.from_numpy(np.partition(scores.numpy(), count - 1)[count - 1 : count])
    below, equal = (scores < limit).nonzero()[:, 0], (scores == limit).nonzero()[:, 0]
    below = below[scores[below].argsort(stable=True)]
    return torch.cat([below, equal[: count - len(below)]])


def seen_bytes(eviction: Eviction) -> int:
    """Bytes that eviction keeps for each row: when it was looked up, and for `least_frequent` how often."""
    return 16 if eviction.at_capacity == "least_frequent" else 8


class Candidates(NamedTuple):
    """Rows that may make room: their keys, when they were looked up, and scores, of which the lowest go first."""

    keys: torch.Tensor
    last: torch.Tensor
    scores: torch.Tensor


class Seen:
    """What eviction needs to know of rows, in int64: `seen`, the time of the last look-up, which is 0 where there is no
    row; and for `least_frequent` `sightings`. Times are in microseconds."""

    def __init__(self, capacity: int, eviction: Eviction) -> None:
        self._eviction: Final = eviction
        self.storages: Final[dict[str, RowStorage]] = {"seen": make_rows(capacity, 1, torch.int64)}
        if eviction.at_capacity == "least_frequent":
            self.storages["sightings"] = make_rows(capacity, 1, torch.int64)

    def begin(self, rows: int, numbers: torch.Tensor, now: int) -> None:
        """Notes that these rows, int64 [n], were added at a time, and that there are so many in all."""
        for name, storage in self.storages.items():
            storage.grow(rows)
            storage.write(numbers, torch.full((len(numbers), 1), now if name == "seen" else 0, device="cpu"))

    def note(self, numbers: torch.Tensor, now: int) -> None:
        """Notes that different rows were looked up at a time."""
        self.storages["seen"].write(numbers, torch.full((len(numbers), 1), now, device="cpu"))
        if (sightings := self.storages.get("sightings")) is not None:
            sightings.write(numbers, sightings.read(numbers) + 1)

    def read(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        """What is kept of rows, int64 [n], by name."""
        return {name: storage.read(numbers)[:, 0] for name, storage in self.storages.items()}

    def write(self, numbers: torch.Tensor, known: Mapping[str, torch.Tensor]) -> None:
        """Takes over what `read` has returned of rows, int64 [n], as far as it is there."""
        for name, storage in self.storages.items():
            if (column := known.get(name)) is not None:
                storage.write(numbers, column[:, None])

    def forget(self, numbers: torch.Tensor) -> None:
        """Notes that these rows, int64 [n], are free."""
        self.storages["seen"].write(numbers, torch.zeros(len(numbers), 1, dtype=torch.int64, device="cpu"))

    def expired(self, begin: int, end: int, now: int) -> torch.Tensor:
        """The numbers of the rows from `begin` to before `end` that have expired."""
        if self._eviction.ttl is None:
            return torch.empty(0, dtype=torch.int64, device="cpu")
        age = max(self._eviction.ttl, self._eviction.spare)
        last = self.storages["seen"].between(begin, end)[:, 0]
        return begin + ((last != 0) & (last <= now - int(age * 1e6))).nonzero()[:, 0]

    def last(self, numbers: torch.Tensor) -> torch.Tensor:
        """When rows, int64 [n], were looked up, int64 [n]; 0 where there is none."""
        return self.storages["seen"].read(numbers)[:, 0]

    def ages(self, numbers: torch.Tensor, now: int) -> dict[str, torch.Tensor]:
        """What is known of rows, int64 [n], whatever the time: microseconds since the last look-up, and sightings."""
        found = {"age": now - self.last(numbers)}
        if (sightings := self.storages.get("sightings")) is not None:
            found["sightings"] = sightings.read(numbers)[:, 0]
        return found

    def put(self, numbers: torch.Tensor, known: Mapping[str, torch.Tensor], now: int) -> None:
        """Takes over what `ages` has said of rows, int64 [n], as far as it is there."""
        if (age := known.get("age")) is not None:
            self.storages["seen"].write(numbers, (now - age.clamp(min=0)).clamp_(min=1)[:, None])
        if "sightings" in self.storages and (sightings := known.get("sightings")) is not None:
            self.storages["sightings"].write(numbers, sightings[:, None].clamp(min=0))

    def scores(self, rows: Rows, numbers: torch.Tensor, now: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of some rows, int64 [n], those that are not spared, when they were seen, and scores: the lowest go first."""
        last = self.last(numbers)
        old = last <= now - int(self._eviction.spare * 1e6)
        numbers, last = numbers[old], last[old]
        match self._eviction.at_capacity:
            case "least_frequent":
                scores = self.storages["sightings"].read(numbers)[:, 0]
            case "smallest_norm":
                parts = [rows.values.read(each).float().norm(dim=1) for each in numbers.split(_BLOCK_ROWS)]
                scores = torch.cat([last[:0].float(), *parts])
            case _:
                scores = last
        return numbers, last, scores

    def clear(self) -> None:
        """Forgets all rows."""
        for storage in self.storages.values():
            storage.clear()
