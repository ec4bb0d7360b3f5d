"""Tells whose memory a parameter was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.hosting.aliases import is_within

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def taken_memory(moved: torch.Tensor, others: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> str:
    """Describes the tensor that shares the memory of a moved leaf.

    Args:
        moved: A leaf that has other memory than at the beginning.
        others: The leaves of the other parameters of the module.
        kept: The tensors that the module keeps besides its parameters.

    Returns:
        A phrase for an error message; empty if the memory is its own.
    """
    if is_within(moved, others):
        return "another parameter"
    return "a tensor that the module keeps" if is_within(moved, kept) else ""
