"""The interface of the part of a pass that hosted code makes on other owners."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

import torch


class Over(NamedTuple):
    """The contexts of a trainer that have ended: all below `before` (0: not known), except those of `but`."""

    before: int = 0
    but: Sequence[int] = ()


NOTHING_SAID: Final = Over()


class NestedPass(Protocol):
    """The part of a pass that hosted code makes on other owners.

    `root` is an extra input for `autograd.grad`, so that it also propagates through calls whose inputs require no grad.
    """

    root: torch.Tensor

    def calling(self, place: tuple[int, ...]) -> AbstractContextManager[None]:
        """Makes the calls of this thread during a block part of the pass, nested in the calls of these numbers."""

    def propagating(self, retain_graph: bool, backward: int) -> AbstractContextManager[None]:
        """Lets this thread propagate through such calls during a block, which ends when all have answered."""

    def others(self) -> list[str]:
        """Names of the owners that were called."""

    def end(self, over: Over) -> None:
        """Ends the pass on the other owners, and tells them of other contexts that are over. Does not wait for them."""
