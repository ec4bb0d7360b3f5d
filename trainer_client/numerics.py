"""Numerics: what owners are told of how this thread's torch computes."""

from __future__ import annotations

import threading
from typing import Any

from ps_wire.codec import dtypes
from ps_wire.numerics.autocast import Autocasts
from ps_wire.numerics.seeds import Seeds
from ps_wire.runtime.scopes import current_scope


class Seeding:
    """From where the calls of a client have their seeds, if they have any. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seeds: Seeds | None = None

    def begin(self, seed: int | None) -> None:
        """Counts from one again, with another seed; None ends it."""
        with self._lock:
            self._seeds = None if seed is None else Seeds(seed)

    def branch(self) -> Seeds | None:
        """Those of one context, which counts its calls for itself."""
        seeds = self._seeds
        return None if seeds is None else seeds.branch()

    def next(self, of_context: Seeds | None) -> int | None:
        """The seed of a call that is made now; None if it has none.

        Args:
            of_context: Those of the context in which it is made.
        """
        scope = current_scope.get()
        if scope is not None and scope.seeds is not None:
            return scope.seeds.next()
        seeds = of_context or self._seeds
        return None if seeds is None else seeds.next()


def write_numerics(request: Any, seed: int | None = None) -> None:
    """Fills in how a call or backward is to be computed, if there is anything to say.

    Args:
        request: A message with a field for that.
        seed: Of its random numbers.
    """
    autocasts = Autocasts.current()
    if autocasts.regions:
        for each in autocasts.regions:
            request.numerics.autocast.add(device=each.device, dtype=dtypes.to_wire(each.dtype))
        request.numerics.uncached = not autocasts.cached
    if seed is not None:
        request.numerics.seed = seed
