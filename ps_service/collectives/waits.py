"""How long a member waits for others."""

from __future__ import annotations

import math
from typing import Final, NamedTuple


class Wait(NamedTuple):
    """A wait.

    Attributes:
        seconds: How long; 0 is no limit.
        until: When it ends, on the clock of the owner.
    """

    seconds: float
    until: float


ENDLESS: Final = Wait(0.0, math.inf)
"""A wait without a limit."""
