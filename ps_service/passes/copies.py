"""Copies of tensors for answers, with the strides that they arrive with."""

from __future__ import annotations

import torch

from ps_wire.codec.strides import has_kept_gaps


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy without history. It keeps the strides where a receiver would, also those of a view with small gaps."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or tensor.is_contiguous() or tensor.is_quantized or not has_kept_gaps(tensor):
        return tensor.clone()
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def marked_copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Like `copy_of`, but the copy tells whether the tensor requires grad."""
    return copy_of(tensor).requires_grad_(tensor.requires_grad)
