"""Which new ids get a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from ps_service.tables.randomness import ADMISSION, random_bits, uniform
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.hashing import GOLDEN, mix, mix_one
from ps_wire.tables.lifecycle import Admission, AfterSightings, WithProbability

_HASHES: Final = 4
"""Counters of an id."""


class CountingFilter:
    """A counting Bloom filter with 8 bits for each counter, for `AfterSightings`."""

    def __init__(self, options: AfterSightings, seed: int) -> None:
        self._sightings: Final = options.sightings
        self._counters: Final[npt.NDArray[np.uint8]] = np.zeros(options.counters, np.uint8)
        self._salt: Final = mix_one(seed, ADMISSION)
        self._left = self._window = options.counters // 8
        self.memory = self._counters.nbytes

    def admits(self, ids: torch.Tensor) -> torch.Tensor:
        """Which of these different ids, int64 [n], get a row now, bool [n]. They have been seen once more."""
        places = self._places(ids)
        counts = self._counters[places].min(1).astype(np.int64) + 1  # can be more than a counter can hold
        # Conservative update: only counters that are below the new count are raised to it.
        np.maximum.at(self._counters, places, np.minimum(counts, 255).astype(np.uint8)[:, None])
        admitted = counts >= self._sightings
        self._left -= len(ids)
        if self._left <= 0:
            self._left = self._window
            np.right_shift(self._counters, 1, out=self._counters)
        return torch.from_numpy(admitted)

    def _places(self, ids: torch.Tensor) -> npt.NDArray[np.uint64]:
        """The counters of ids, [n, _HASHES]."""
        keys = mix(ids.numpy(), self._salt)
        steps = np.arange(1, _HASHES + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        places: npt.NDArray[np.uint64] = mix(keys[:, None] + steps) % np.uint64(len(self._counters))
        return places

    def record_bytes(self, count: int) -> int:
        """At most the bytes of `change` after so many ids."""
        return (8 + _HASHES) * count + (self.memory if count >= self._left else 0)

    def change(self, ids: torch.Tensor) -> dict[str, Any]:
        """What the last `admits`, of these ids, has changed: the counts of their counters, uint8 [n, _HASHES], or all
        of them."""
        if self._left == self._window:
            return self.state()
        counts = torch.from_numpy(self._counters[self._places(ids)])
        return {"ids": ids, "counts": counts, "left": self._left}

    def redo(self, change: Mapping[str, Any]) -> None:
        """Makes a change again."""
        if (ids := change.get("ids")) is None:
            self.load(change)
        else:
            self._counters[self._places(ids)] = change["counts"].numpy()
            self._left = change["left"]

    def state(self) -> dict[str, Any]:
        """What it remembers, in plain values and tensors that share its memory."""
        return {"counters": torch.from_numpy(self._counters), "left": self._left}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what another one with the same seed and options remembered; `InvalidArgumentError` for others."""
        counters, left = state.get("counters"), state.get("left")
        if not isinstance(counters, torch.Tensor) or counters.shape != self._counters.shape:
            raise InvalidArgumentError("these sightings were counted by a filter of another size")
        self._counters[:] = counters.to(torch.uint8).numpy()
        self._left = min(int(left or 0), self._window) or self._window

    def clear(self) -> None:
        """Forgets all ids."""
        self._counters[:] = 0
        self._left = self._window


class Lottery:
    """For `WithProbability`. The draws depend on the seed, the id and the number of earlier calls."""

    memory = 0

    def __init__(self, options: WithProbability, seed: int) -> None:
        self._probability: Final = options.probability
        self._seed: Final = seed
        self._calls = 0

    def admits(self, ids: torch.Tensor) -> torch.Tensor:
        """As `CountingFilter.admits`."""
        self._calls += 1
        calls = np.full(len(ids), self._calls, np.int64)
        draws = uniform(random_bits(self._seed, ADMISSION, ids.numpy(), 1, calls))[:, 0]
        return torch.from_numpy(draws < self._probability)

    def record_bytes(self, count: int) -> int:
        """As `CountingFilter.record_bytes`."""
        return 0

    def change(self, ids: torch.Tensor) -> dict[str, Any]:
        """As `CountingFilter.change`."""
        return self.state()

    def redo(self, change: Mapping[str, Any]) -> None:
        """As `CountingFilter.redo`."""
        self.load(change)

    def state(self) -> dict[str, Any]:
        """As `CountingFilter.state`."""
        return {"calls": self._calls}

    def load(self, state: Mapping[str, Any]) -> None:
        """As `CountingFilter.load`."""
        self._calls = max(int(state.get("calls", 0)), 0)

    def clear(self) -> None:
        """Does nothing: it knows no ids."""


def make_gate(admission: Admission | None, seed: int) -> CountingFilter | Lottery | None:
    """What decides which ids without a row get one; None if every id gets one at once."""
    match admission:
        case AfterSightings():
            return CountingFilter(admission, seed)
        case WithProbability():
            return Lottery(admission, seed)
        case None:
            return None
