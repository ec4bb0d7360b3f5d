"""A pool of the bound copies of one module."""

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
    """Keeps a few bound copies of one module for reuse. Making one costs ten times as much as binding it."""

    def __init__(self, module: nn.Module, keep: int = 4) -> None:
        self._module = module
        self._keep = keep
        self.internals = Internals(frozenset(map(id, module.parameters())))
        # One is made at once, to find where the module keeps tensors.
        self._free: dict[bool | None, list[BoundCopy]] = {
            True: [BoundCopy(module, True, self.internals)],
            False: [],
            None: [],
        }

    def lend(
        self, training: bool | None, parameters: Sequence[nn.Parameter], leaves: Sequence[torch.Tensor]
    ) -> BoundCopy:
        """Binds a copy and returns it. Safe to call from several threads.

        Args:
            training: Whether it is in training mode; None for the modes of the module and its parts.
            parameters: The parameters of the module.
            leaves: What replaces them.
        """
        bound_copy = self._kept(training) or BoundCopy(self._module, training, self.internals)
        bound_copy.bind(parameters, leaves)
        return bound_copy

    def _kept(self, training: bool | None) -> BoundCopy | None:
        free = self._free[training]
        while free:
            try:
                bound_copy = free.pop()
            except IndexError:
                break  # another thread has taken it
            if bound_copy.is_current:
                return bound_copy
        return None

    def take_back(
        self, training: bool | None, bound_copy: BoundCopy, known: Container[int] = (), leaves_tensors: bool = True
    ) -> Returned:
        """Unbinds a copy after its run, and keeps it for another run if no other object refers to it.

        Args:
            training: As it was lent.
            bound_copy: The bound copy.
            known: `id()` of the tensors among the attributes that had a history before the run.
            leaves_tensors: Whether the run may have stored tensors other than the parameters.
        """
        returned = bound_copy.unbind(known, leaves_tensors)
        free = self._free[training]
        if returned.reusable and len(free) < self._keep:
            free.append(bound_copy)
        return returned
