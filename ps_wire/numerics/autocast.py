"""Autocasts: the `torch.autocast` regions of a thread, to be entered again in another thread or process."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Final, NamedTuple

import torch

_DEVICES: Final = ("cpu", "cuda")
_NOTHING: Final = nullcontext()


class Autocast(NamedTuple):
    """A region that is switched on.

    Attributes:
        device: The type of device whose operations are cast.
        dtype: To what.
    """

    device: str
    dtype: torch.dtype


class Autocasts(NamedTuple):
    """What is switched on in a thread.

    Attributes:
        regions: For each type of device that has one.
        cached: Whether casts of parameters are kept until the outermost region ends.
    """

    regions: tuple[Autocast, ...] = ()
    cached: bool = True

    @classmethod
    def current(cls) -> Autocasts:
        """Those of this thread."""
        found: tuple[Autocast, ...] = ()
        for each in _DEVICES:
            if torch.is_autocast_enabled(each):
                found = (*found, Autocast(each, torch.get_autocast_dtype(each)))
        return cls(found, torch.is_autocast_cache_enabled()) if found else NONE

    def entered(self) -> AbstractContextManager[object]:
        """A block in which they are switched on in this thread as well."""
        if not self.regions:
            return _NOTHING
        stack = ExitStack()
        for each in self.regions:
            stack.enter_context(torch.autocast(each.device, each.dtype, cache_enabled=self.cached))
        return stack


NONE: Final = Autocasts()
"""Nothing is switched on."""
