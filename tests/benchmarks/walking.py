"""Runs the walk in a forked process.

That has the autograd functions of the tests' modules, with which no backward of an own class runs on the event loop.
They count as known here.
"""

from __future__ import annotations

from benchmarks import walk
from ps_service.passes import binding

if __name__ == "__main__":
    binding._KNOWN += ("tests",)  # type: ignore[misc]
    walk.main()
