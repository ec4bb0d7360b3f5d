"""Waits for a condition, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_PAUSE_SECONDS: Final = 0.2
"""Between two looks: each costs a call to the engine or to an owner, and they need the cores too."""


class WaitedInVain(AssertionError):
    """Something did not become so in time; the message says what."""


def wait_for(what: str, look: Callable[[], T | None], seconds: float) -> T:
    """Looks again and again until there is something to see.

    Args:
        what: What is waited for, in words.
        look: What it is; None as long as it is not so.
        seconds: How long, at most.

    Raises:
        WaitedInVain: It did not become so in time.
    """
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise WaitedInVain(f"waited {seconds:g} s in vain for {what}")
        time.sleep(_PAUSE_SECONDS)
    return found
