"""Imported by an owner of a test, it makes the first table there take as long as in a process that was not forked."""

from __future__ import annotations

import sys

from ps_service.tables.preparing import PREPARATION
from ps_wire.decorators import remote

LOOPS = (
    *("kernels.loops", "kernels.prefetching", "kernels.updates", "kernels.fast"),
    *("id_map.kernels", "id_map.numba_maps"),
)
"""Modules with loops, or with what has them. They are imported with the first table."""

for name in LOOPS:
    package, _, module = f"ps_service.tables.{name}".rpartition(".")
    if sys.modules.pop(f"{package}.{module}", None) is not None:
        delattr(sys.modules[package], module)
PREPARATION._ended = False


@remote
def loops_there() -> list[str]:
    """Which of them have been imported."""
    return [name for name in LOOPS if f"ps_service.tables.{name}" in sys.modules]
