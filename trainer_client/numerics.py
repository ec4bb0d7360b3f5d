"""The seeds of a client's calls."""

from __future__ import annotations

import threading
from operator import index

from ps_wire.numerics.seeds import Seeds
from ps_wire.runtime.scopes import current_scope


class Seeding:
    """Makes the seeds of a client's calls, if it has a seed. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seeds: Seeds | None = None

    def begin(self, seed: int | None) -> None:
        """Starts to count from one again, with a new seed, an integer; None for calls without seeds."""
        with self._lock:
            self._seeds = None if seed is None else Seeds(index(seed))

    def branch(self) -> Seeds | None:
        """The seeds for one context, which counts its calls separately; None without a seed."""
        seeds = self._seeds
        return None if seeds is None else seeds.branch()

    def next(self, of_context: Seeds | None) -> int | None:
        """The seed of the next call, from the seeds of the context that it is made in, if any; None without a seed."""
        scope = current_scope.get()
        if scope is not None and scope.seeds is not None:
            return scope.seeds.next()
        seeds = of_context or self._seeds
        return None if seeds is None else seeds.next()
