"""The `torch.autocast` regions of a thread, to be entered again in another thread or process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Final, NamedTuple

import torch

is_active: Final[Callable[[], bool]] = torch._C._is_any_autocast_enabled
"""Whether this thread is in a region of any device."""

_DEVICES: Final = ("cpu", "cuda")
_NOTHING: Final = nullcontext()


class Autocast(NamedTuple):
    """An active region: the device type whose operations are cast, and the dtype that they are cast to."""

    device: str
    dtype: torch.dtype


class Autocasts(NamedTuple):
    """The active regions of a thread, at most one for each device type. Casts of parameters may be `cached` until the
    outermost region ends."""

    regions: tuple[Autocast, ...] = ()
    cached: bool = True

    @classmethod
    def current(cls) -> Autocasts:
        """The active regions of this thread."""
        if not is_active():
            return NONE
        found = tuple(
            Autocast(each, torch.get_autocast_dtype(each)) for each in _DEVICES if torch.is_autocast_enabled(each)
        )
        return cls(found, torch.is_autocast_cache_enabled()) if found else NONE

    def entered(self) -> AbstractContextManager[object]:
        """A block in which they are active in this thread."""
        if not self.regions:
            return _NOTHING
        stack = ExitStack()
        for each in self.regions:
            stack.enter_context(torch.autocast(each.device, each.dtype, cache_enabled=self.cached))
        return stack


NONE: Final = Autocasts()
"""No active regions."""
