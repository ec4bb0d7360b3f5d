"""Tells whether tensors share memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ps_service.memory.held import storages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def sharing(watches: Iterable[int], others: Iterable[torch.Tensor]) -> Callable[[torch.Tensor], bool]:
    """Tells whether a tensor shares memory with watched storages or other tensors."""
    taken, sparse = set(watches), set[int]()
    for each in others:
        if each.is_sparse:
            sparse.add(id(each))
        else:
            taken.add(storage_of(each))

    def is_shared(tensor: torch.Tensor) -> bool:
        if tensor.is_sparse:
            return id(tensor) in sparse
        if tensor.layout is torch.strided:
            return storage_of(tensor) in taken
        return any(storage.data_ptr() in taken for storage in storages(tensor))

    return is_shared


def always(tensor: torch.Tensor) -> bool:
    """For tensors of which that is not known."""
    return True


def storage_of(tensor: torch.Tensor) -> int:
    """The address of the memory of a strided tensor."""
    return tensor.untyped_storage().data_ptr()
