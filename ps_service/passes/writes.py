"""Writes values to parameters, and compares memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ps_service.hosting.aliases import is_within

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def write(parameters: Sequence[torch.Tensor], values: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> None:
    """Sets values of parameters. A value may be in the memory of another parameter, after a swap.

    Args:
        parameters: The parameters.
        values: The value of each parameter.
        kept: The tensors that the module keeps beside its parameters.
    """
    used = {_memory(each) for each in (*values, *kept) if each.layout is torch.strided}
    for parameter, value in zip(parameters, values, strict=True):
        if _memory(parameter) in used:
            parameter.data = value.clone()
        else:
            parameter.data.copy_(value)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, which can be compared also where they are NaN."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
