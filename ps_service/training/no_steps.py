"""A block in which optimizers apply no step."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ps_service.training.optimizers import HostedOptimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ps_service.hosting.objects import HostedObject


class StillBusy(Exception):
    """Steps or hosted code hold what would have to be read; the message says where."""


@contextmanager
def no_steps(objects: Iterable[HostedObject], patience: float) -> Iterator[None]:
    """Lets the optimizers among these objects apply no step while the block runs. Steps wait; passes go on.

    Raises `StillBusy` if steps that are being applied take longer than `patience` seconds in all.
    """
    until = time.monotonic() + patience
    optimizers = [(each.value, each) for each in objects if isinstance(each.value, HostedOptimizer)]
    with ExitStack() as stack:
        # In the order of steps that apply to several optimizers at once.
        for optimizer, hosted in sorted(optimizers, key=lambda each: each[0].number):
            if not optimizer.lock.acquire(seconds=max(until - time.monotonic(), 0.0)):
                raise StillBusy(f"a step of {hosted} takes longer than {patience:g} s")
            stack.callback(optimizer.lock.release)
        yield
