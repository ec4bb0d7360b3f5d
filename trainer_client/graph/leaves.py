"""Local leaves of torch's graph: which backward may use their `.grad`, and the gradients that a pass has for them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch


class Reservations:
    """Lets passes that share local leaves run one after the other, and all others concurrently.

    A backward collects gradients in `leaf.grad`, of which a leaf has only one, so two passes in different threads must
    not use the same leaf at once.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy: set[int] = set()

    @contextmanager
    def of(self, leaves: Sequence[torch.Tensor]) -> Iterator[None]:
        """Waits until no other pass has reserved any of the leaves, and reserves them during the block."""
        wanted = {id(leaf) for leaf in leaves}
        with self._changed:
            while not self._busy.isdisjoint(wanted):
                self._changed.wait()
            self._busy |= wanted
        with self.freed(leaves):
            yield

    def take_now(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Takes the leaves for a block of `freed`, unless another pass has one of them; says whether it did."""
        wanted = {id(leaf) for leaf in leaves}
        with self._changed:
            if not self._busy.isdisjoint(wanted):
                return False
            self._busy |= wanted
            return True

    @contextmanager
    def freed(self, leaves: Sequence[torch.Tensor]) -> Iterator[None]:
        """Lets other passes have the leaves when the block ends."""
        try:
            yield
        finally:
            with self._changed:
                self._busy.difference_update(map(id, leaves))
                self._changed.notify_all()


@contextmanager
def borrowed_grads(leaves: Sequence[torch.Tensor]) -> Iterator[None]:
    """Sets the `.grad` of leaves to None during a block, and restores it afterwards."""
    before = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    try:
        yield
    finally:
        for leaf, grad in zip(leaves, before, strict=True):
            leaf.grad = grad


def grads_of(leaves: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Those of the leaves that have a `.grad`, with it."""
    return [(leaf, leaf.grad) for leaf in leaves if leaf.grad is not None]


reservations = Reservations()
"""The reservations of this process."""


class LocalGradients:
    """Adds up the gradients that a pass has for local leaves. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By the leaf's id(); the leaf is kept, so that no other object gets the same id().
        self._held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, found: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Adds gradients of leaves to those that are there."""
        with self._lock:
            for leaf, grad in found:
                if grad._is_view():
                    # A view of a bucket of DistributedDataParallel, which overwrites it in the next backward.
                    grad = grad.clone()
                held = self._held.get(id(leaf))
                self._held[id(leaf)] = (leaf, grad if held is None else _sum(held[1], grad))

    def of(self, leaf: torch.Tensor) -> torch.Tensor | None:
        """The gradient of a leaf, if it has one."""
        held = self._held.get(id(leaf))
        return None if held is None else held[1]

    def items(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The leaves that have a gradient, and their gradients."""
        with self._lock:
            return list(self._held.values())

    def scale(self, leaves: Iterable[torch.Tensor], factor: float) -> None:
        """Multiplies the gradients of leaves."""
        with self._lock:
            for leaf in leaves:
                held = self._held.get(id(leaf))
                if held is not None:
                    self._held[id(leaf)] = (leaf, held[1] * factor)

    def drop(self, leaves: Iterable[torch.Tensor]) -> None:
        """Drops the gradients of leaves."""
        with self._lock:
            for leaf in leaves:
                self._held.pop(id(leaf), None)

    def clear(self) -> None:
        """Drops all gradients."""
        self._held.clear()

    def reserved(self, leaves: Sequence[torch.Tensor]) -> AbstractContextManager[None]:
        """Lets a block use the `.grad` of leaves; waits first until other code of this process does not."""
        return reservations.of(leaves)

    def take_now(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Like `reserved`, for a block of `reservations.freed`; says whether that was possible without a wait."""
        return reservations.take_now(leaves)


def _sum(held: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    # Torch adds a sparse tensor to a dense one, but not the other way round.
    return more + held if held.is_sparse and not more.is_sparse else held + more
