"""A method of a hosted object, and what is known of its calls."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ps_wire.runtime.latency import Latency

if TYPE_CHECKING:
    from collections.abc import Callable

SHORT_CALLS: Final = 8
"""Calls without a wait, after which a method of a module's own class may run on the event loop."""

LONG_SECONDS: Final = 0.25
"""A method of which one call took longer than this never does."""


class Method:
    """A method that trainers may call: an unbound function, whose first argument is the object.

    It `is_inline` if it is of a layer of torch, or marked `@remote(inline=True)`, and `is_deferred` if it is marked
    `@async_execution`. If it `may_run_inline`, calls that are expected to be short run on the event loop.
    """

    __slots__ = ("_calls", "backward_latency", "function", "is_deferred", "is_inline", "latency", "may_run_inline")

    def __init__(self, function: Callable[..., Any], is_inline: bool, is_deferred: bool) -> None:
        self.function = function
        self.is_inline = is_inline
        self.is_deferred = is_deferred
        self.latency = Latency()
        self.backward_latency = Latency()
        self._calls = 0.0
        self.may_run_inline = is_inline and not is_deferred

    def note(self, seconds: float, waited: bool) -> None:
        """Notes a call that ran in a thread or on the event loop, and changed nothing of its module. It has `waited` if
        it made requests of its own, or began to."""
        self._calls = -math.inf if waited or seconds > LONG_SECONDS else self._calls + 1
        self.may_run_inline = self._calls >= SHORT_CALLS
