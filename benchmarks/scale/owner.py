"""A new owner for each series, so that its memory is that of the series alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from benchmarks.process import Children

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Owner:
    """A running owner.

    Attributes:
        address: Its address.
        process: Its process.
    """

    address: str
    process: psutil.Process

    def rss(self) -> int:
        """Its resident memory, in bytes."""
        return int(self.process.memory_info().rss)


@contextmanager
def running(children: Children) -> Iterator[Owner]:
    """Starts an owner for a block.

    Raises:
        ChildFailed: It does not start.
    """
    child = children.start(
        f"scale-owner{next(_numbers)}", "ps_service", "serve", "--listen", "127.0.0.1:0",
        "--import", "benchmarks.models", listens=False,
    )  # fmt: skip
    try:
        yield Owner(child.line(timeout=120).split()[-1], psutil.Process(child.pid))
    finally:
        children.end([child])
