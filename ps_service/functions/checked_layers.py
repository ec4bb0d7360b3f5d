"""Layers whose arguments are checked before the call, which costs less than checking each operation.

A check here proves that a call is harmless, or proves nothing. In the second case the call runs under `Guard`, which
reports what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from ps_service.functions import dtypes

Proof = Callable[[Any, tuple[Any, ...], dict[str, Any], int], bool]
"""Takes the layer, args, kwargs and the most bytes of one result; returns whether the call is harmless."""

_INDEX_DTYPES: Final = (torch.int64, torch.int32)
_BAG_ARGUMENTS: Final = ("input", "offsets", "per_sample_weights")
_LOSS_ARGUMENTS: Final = ("input", "target")


def proof_for(module: nn.Module) -> Proof | None:
    """The check for a layer; None if its class has none."""
    return _PROOFS.get(type(module))


def _bags(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> bool:
    """Whether every index names a row, and the offsets ascend within the indices."""
    found = _named(_BAG_ARGUMENTS, args, kwargs)
    indices, offsets = found.pop("input", None), found.pop("offsets", None)
    weights = found.pop("per_sample_weights", None)
    if found or not _is_dense(indices) or indices.dtype not in _INDEX_DTYPES or not indices.numel():
        return False
    if not _lie_in(indices, module.num_embeddings) or indices.numel() * module.embedding_dim * 16 > limit:
        return False
    if weights is not None and not (_is_dense(weights) and weights.shape == indices.shape):
        return False
    if indices.dim() == 2:
        return offsets is None
    if indices.dim() != 1 or not _is_dense(offsets) or offsets.dtype != indices.dtype or offsets.dim() != 1:
        return False
    return _are_offsets(offsets, indices.numel(), module.include_last_offset) and (
        offsets.numel() * module.embedding_dim * 16 <= limit
    )


def _are_offsets(offsets: Tensor, indices: int, is_last_included: bool) -> bool:
    begins = offsets.detach().numpy()
    if not len(begins) or begins[0] or begins[-1] > indices or (is_last_included and begins[-1] != indices):
        return False
    return not bool((begins[1:] < begins[:-1]).any())


def _class_loss(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> bool:
    """Whether the scores are (rows, classes) and the target holds one existing class per row."""
    found = _named(_LOSS_ARGUMENTS, args, kwargs)
    scores, classes = found.pop("input", None), found.pop("target", None)
    if found or not _is_dense(scores) or not _is_dense(classes) or scores.dtype not in dtypes.FLOATING:
        return False
    if scores.dim() != 2 or classes.dtype is not torch.int64 or classes.shape != scores.shape[:1]:
        return False
    return bool(scores.numel()) and scores.numel() * 16 <= limit and _lie_in(classes, scores.shape[1])


def _named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; a surplus positional argument is filed under its position."""
    return {**{names[i] if i < len(names) else str(i): each for i, each in enumerate(args)}, **kwargs}


def _is_dense(value: Any) -> bool:
    return type(value) is Tensor and value.layout is torch.strided and value.is_cpu


def _lie_in(integers: Tensor, high: int) -> bool:
    numbers = integers.detach().numpy()
    return bool(numbers.min() >= 0 and numbers.max() < high)


_PROOFS: Final[dict[type[nn.Module], Proof]] = {
    nn.EmbeddingBag: _bags,
    nn.CrossEntropyLoss: _class_loss,
    nn.NLLLoss: _class_loss,
}
