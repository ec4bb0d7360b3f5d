"""The bound copies of one module, of which a few are kept for later calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.hosting.bound_copy import BoundCopy
from ps_service.hosting.internals import Internals

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    import torch
    from torch import nn

    from ps_service.hosting.returned import Returned


class BoundCopies:
    """Keeps a few bound copies of one module, because making one costs ten times as much as binding it."""

    def __init__(self, module: nn.Module, keep: int = 4) -> None:
        self._module = module
        self._keep = keep
        self.internals = Internals(frozenset(map(id, module.parameters())))
        # One is made at once, to learn where the module keeps tensors.
        self._free: dict[bool, list[BoundCopy]] = {True: [BoundCopy(module, True, self.internals)], False: []}

    def lend(self, training: bool, parameters: Sequence[nn.Parameter], leaves: Sequence[torch.Tensor]) -> BoundCopy:
        """A bound bound copy. Safe to call from several threads."""
        bound_copy = self._kept(training) or BoundCopy(self._module, training, self.internals)
        bound_copy.bind(parameters, leaves)
        return bound_copy

    def _kept(self, training: bool) -> BoundCopy | None:
        free = self._free[training]
        while free:
            try:
                bound_copy = free.pop()
            except IndexError:
                break  # another thread was faster
            if bound_copy.is_current:
                return bound_copy
        return None

    def take_back(
        self, training: bool, bound_copy: BoundCopy, known: Container[int] = (), leaves_tensors: bool = True
    ) -> Returned:
        """Unbinds a bound copy after its run, and keeps it for another if nothing refers to it any more.

        Args:
            training: The mode that it is in.
            bound_copy: The bound copy.
            known: Ids of the tensors among the attributes that had a history before the run.
            leaves_tensors: Whether the run may have left tensors beside the parameters.
        """
        returned = bound_copy.unbind(known, leaves_tensors)
        free = self._free[training]
        if returned.reusable and len(free) < self._keep:
            free.append(bound_copy)
        return returned
