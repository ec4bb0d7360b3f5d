"""Local parameters that are copies of parameters on an owner: those of replicas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch.utils.weak import WeakIdKeyDictionary

_COPIES: Final = WeakIdKeyDictionary()


def note_copies(parameters: Iterable[torch.Tensor]) -> None:
    """Notes that these are copies, as long as they live."""
    for each in parameters:
        _COPIES[each] = True


def is_copy(tensor: torch.Tensor) -> bool:
    """Whether a local parameter is that of a replica."""
    return tensor in _COPIES
