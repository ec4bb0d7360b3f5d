"""Writes: how what a call has made of the numbers of parameters gets to the parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import Parameter

from ps_service.hosting.aliases import is_within


def taken_memory(moved: torch.Tensor, others: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> str:
    """What a tensor that was given other memory shares that with.

    Args:
        moved: What stands for a parameter.
        others: What stands for the other parameters of the module.
        kept: The tensors that the module keeps beside its parameters.

    Returns:
        A phrase for an error; empty if the memory is the tensor's own.
    """
    if is_within(moved, others):
        return "another parameter"
    return "a tensor that the module keeps" if is_within(moved, kept) else ""


def write(parameters: Sequence[Parameter], values: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> None:
    """Gives parameters values, some of which may lie in the memory of other parameters, as swapped ones do.

    Args:
        parameters: What is written to.
        values: For each parameter, its value.
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
