"""Has code in a seeded block find the state of the block's generator as that of torch's own: `torch.utils.checkpoint`
notes that state, and sets it again before it recomputes a part in the backward. A call in no block gets one then."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_wire.numerics.random import Seeded

if TYPE_CHECKING:
    from collections.abc import Callable

_get: Final[Any] = torch.get_rng_state
_set: Final[Any] = torch.set_rng_state

_RECOMPUTING: Final = "torch.utils.checkpoint"


def _generator() -> torch.Generator | None:
    block = Seeded.current()
    return None if block is None else block.generator((), {})


@functools.wraps(_set)
def _set_state(state: torch.Tensor) -> None:
    generator = _generator()
    if generator is None:
        _set(state)
    else:
        generator.set_state(state)


def install(begin: Callable[[], None]) -> None:
    """Replaces the functions of torch that get and set the state. Before `torch.utils.checkpoint` notes the state in a
    thread that is in no seeded block, it calls `begin`, which may enter one."""

    @functools.wraps(_get)
    def state() -> torch.Tensor:
        # Other code that asks may be about to seed torch's own generator.
        if Seeded.current() is None and sys._getframe(1).f_globals.get("__name__") == _RECOMPUTING:
            begin()
        generator = _generator()
        found: torch.Tensor = _get() if generator is None else generator.get_state()
        return found

    torch.get_rng_state = state
    torch.set_rng_state = _set_state  # type: ignore[assignment]
