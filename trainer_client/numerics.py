"""The seeds of a client's calls, and what requests carry of seeds and autocast regions."""

from __future__ import annotations

from typing import Any

from ps_wire.codec import dtypes
from ps_wire.numerics.autocast import Autocasts
from ps_wire.numerics.seeds import Seeds, of_torch, whole
from ps_wire.runtime.scopes import current_scope


class Seeding:
    """Makes the seeds of a client's calls, if it has a seed. Safe to use from several threads."""

    seeds: Seeds | None = None
    """Those of calls outside of contexts, and the source of those of contexts; None without a seed."""

    def begin(self, seed: int | None) -> None:
        """Starts to count from one again, with a new seed, an integer; None for calls without seeds."""
        self.seeds = None if seed is None else Seeds(whole(seed))

    def next(self, of_context: Seeds | None) -> int | None:
        """The seed of the next call, from the seeds of the context that it is made in, if any; None without a seed."""
        scope = current_scope.get()
        if scope is not None and scope.seeds is not None:
            return scope.seeds.next()
        seeds = of_context or self.seeds
        return None if seeds is None else seeds.next()


def write_numerics(request: Any, seed: int | None = None) -> None:
    """Writes the numerics of a call or backward into its request, which has a field `numerics`. Need not be called
    without a seed and outside of autocast regions (`is_active`). Raises `InvalidArgumentError` if the seed is no
    integer."""
    for each in Autocasts.current().regions:
        request.numerics.autocast.add(device=each.device, dtype=dtypes.to_wire(each.dtype))
    if seed is not None:
        request.numerics.seed = of_torch(seed)
