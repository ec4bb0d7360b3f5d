"""Where tensors lie in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ps_service.memory.held import storages

if TYPE_CHECKING:
    from collections.abc import Set


def storage_of(tensor: torch.Tensor) -> int:
    """The address of the memory of a strided tensor."""
    return tensor.untyped_storage().data_ptr()


def memory_of(tensor: torch.Tensor) -> int:
    """Identifies the memory of a tensor; that of a sparse one by `id()`."""
    return id(tensor) if tensor.is_sparse else tensor.untyped_storage().data_ptr()


def lies_in(tensor: torch.Tensor, taken: Set[int] | None) -> bool:
    """Whether a tensor shares memory with others, as `memory_of`; true if those are not known."""
    if taken is None or tensor.is_sparse:
        return taken is None or id(tensor) in taken
    if tensor.layout is torch.strided:
        return tensor.untyped_storage().data_ptr() in taken
    return any(storage.data_ptr() in taken for storage in storages(tensor))
