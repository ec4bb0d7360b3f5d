"""Walks torch's autograd graph, and reserves the leaves that a backward reaches."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.utils.checkpoint import CheckpointFunction

from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics import autograd_graph
from trainer_client.graph.nodes import RECEIVING, ROOT

_REENTRANT: Final[Any] = CheckpointFunction._backward_cls
"""The class of the nodes of reentrant checkpoints."""


def reached_from(roots: Iterable[torch.Tensor]) -> tuple[list[torch.Tensor], list[Any]]:
    """The leaves that a backward reaches, and each call's `WayBack`.

    `InvalidArgumentError` for reentrant checkpoints.
    """
    leaves, nodes = autograd_graph.reached_from(roots, (RECEIVING, _REENTRANT))
    if any(isinstance(node, _REENTRANT) for node in nodes):
        raise InvalidArgumentError(
            "torch.utils.checkpoint with use_reentrant=True runs a backward of its own, and its gradients would not "
            "belong to the context; call it with use_reentrant=False"
        )
    return [leaf for leaf in leaves if leaf is not ROOT], [node.call for node in nodes]


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
