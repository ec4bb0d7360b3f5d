"""Has code in a seeded block find the state of the block's generator as that of torch's own: `torch.utils.checkpoint`
notes that state, and sets it again before it recomputes a part in the backward."""

from __future__ import annotations

import functools
from typing import Any, Final

import torch

from ps_wire.numerics.random import Seeded

_get: Final[Any] = torch.get_rng_state
_set: Final[Any] = torch.set_rng_state


def _generator() -> torch.Generator | None:
    block = Seeded.current()
    return None if block is None else block.generator((), {})


@functools.wraps(_get)
def _state() -> torch.Tensor:
    generator = _generator()
    state: torch.Tensor = _get() if generator is None else generator.get_state()
    return state


@functools.wraps(_set)
def _set_state(state: torch.Tensor) -> None:
    generator = _generator()
    if generator is None:
        _set(state)
    else:
        generator.set_state(state)


def install() -> None:
    """Replaces the functions of torch that get and set the state."""
    torch.get_rng_state = _state
    torch.set_rng_state = _set_state  # type: ignore[assignment]
