"""The arithmetic of tables, with numba or with torch alone."""

from __future__ import annotations

from ps_service.tables import compiled
from ps_service.tables.kernels.kernels import Grouped, Kernels

__all__ = ["Grouped", "Kernels", "make_kernels"]


def make_kernels(implementation: str | None = None) -> Kernels:
    """The kernels with "numba" or "torch"; None for the first that is installed."""
    if implementation == "torch" or (implementation is None and not compiled.available()):
        return Kernels()
    from ps_service.tables.kernels.fast import NumbaKernels

    return NumbaKernels()
