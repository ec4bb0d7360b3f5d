"""What hosted code does on other owners in one pass, as the owner that runs the code sees it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

import torch


class Over(NamedTuple):
    """Which contexts of a trainer are over.

    Attributes:
        before: Those with lower numbers; zero if that is not said.
        but: Except for these.
    """

    before: int = 0
    but: Sequence[int] = ()


NOTHING_SAID: Final = Over()


class NestedPass(Protocol):
    """What hosted code does on other owners in one pass.

    Attributes:
        root: What autograd is asked for to make it go back through calls whose inputs lead nowhere here.
    """

    root: torch.Tensor

    def calling(self, place: tuple[int, ...]) -> AbstractContextManager[None]:
        """While the block runs, the calls of this thread belong to the pass.

        Args:
            place: Number of the call that this thread runs, after those of the calls around it.
        """

    def propagating(self, retain_graph: bool, backward: int) -> AbstractContextManager[None]:
        """While the block runs, this thread propagates through such calls; at its end they have all answered.

        Args:
            retain_graph: Whether they may be propagated again.
            backward: Number of the trainer's backward.
        """

    def others(self) -> list[str]:
        """Names of the owners that were called."""

    def end(self, over: Over) -> None:
        """The pass is over: the other owners are told, without waiting for them.

        Args:
            over: Which other contexts of its trainer are over.
        """
