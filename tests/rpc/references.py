"""How many references a member counts, and whether a value is gone; waiting for what other members do by themselves."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from ps_wire.errors import StaleHandleError
from ps_wire.refs import Ref
from tests.waiting import pauses
from trainer_client.rpc.current import agent


def eventually(so: Callable[[], bool]) -> bool:
    """Looks again and again, for some seconds."""
    end = time.monotonic() + 20
    for pause in pauses():
        if so():
            return True
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    raise AssertionError("pauses end never")


def references(worker: str) -> int:
    agent().session(worker)  # opened now, if this test is the first
    return int(agent().client.status(worker).wait().references)


def settled(worker: str, at_most: int) -> None:
    """References are given back soon, and not at once: looks until so few are left."""
    gc.collect()
    assert eventually(lambda: references(worker) <= at_most)


def freed(reference: Ref) -> bool:
    """Waits until a value is gone; says whether that came to be."""
    gc.collect()

    def gone() -> bool:
        try:
            agent().client.attach(str(reference)).wait()
        except StaleHandleError:
            return True
        return False

    return eventually(gone)
