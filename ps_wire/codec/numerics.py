"""Writes the seed and the autocast regions of a call into its request."""

from __future__ import annotations

from typing import Any

from ps_wire.codec import dtypes
from ps_wire.numerics.autocast import Autocasts
from ps_wire.numerics.seeds import of_torch


def write_numerics(request: Any, seed: int | None = None) -> None:
    """Writes the numerics of a call or backward into its request, which has a field `numerics`. Need not be called
    without a seed and outside of autocast regions (`is_active`). Raises `TypeError` if the seed is no integer."""
    autocasts = Autocasts.current()
    if autocasts.regions:
        for each in autocasts.regions:
            request.numerics.autocast.add(device=each.device, dtype=dtypes.to_wire(each.dtype))
        request.numerics.uncached = not autocasts.cached
    if seed is not None:
        request.numerics.seed = of_torch(seed)
