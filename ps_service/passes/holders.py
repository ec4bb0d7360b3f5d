"""Tells whether other code refers to a tensor that a hosted method has returned.

An object may change its tensors before the answer is sent, so results are copied. A result without other references
needs no copy. For large tensors the copy, in fresh memory, is most of the cost of a call.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch

from ps_wire.codec.strides import has_kept_gaps
from ps_wire.codec.trees import mapped

LARGE: Final = 64 * 1024
"""Size from which counting references costs less than copying, in bytes."""


class _Count(NamedTuple):
    """The numbers of references to the Python object, to the tensor behind it, and to its memory."""

    objects: int
    tensors: int
    memory: int


def _count(tensor: torch.Tensor) -> _Count:
    memory: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return _Count(sys.getrefcount(tensor), tensor._use_count(), memory)  # type: ignore[attr-defined]


class Holders:
    """The references to the large tensors among a call's arguments, counted before the call begins. The arguments are
    those that are tensors themselves; references to tensors in containers cannot be counted. The caller keeps the
    sequence until the result is there, because it counts as a reference."""

    def __init__(self, arguments: Sequence[torch.Tensor]) -> None:
        self._before = {id(tensor): _count(tensor) for tensor in arguments if _is_plain(tensor)}

    def sent(self, result: Any) -> Any:
        """The result as it is sent: detached, with copies of tensors that other code may refer to. Pass the return
        value directly: a variable of the caller would count as a reference."""
        if isinstance(result, torch.Tensor) and _is_plain(result) and self._is_alone(result, _count(result)):
            return result
        return None if result is None else mapped(result, marked_copy_of)

    def _is_alone(self, result: torch.Tensor, now: _Count) -> bool:
        if weakref.getweakrefcount(result):
            return False
        before = self._before.get(id(result))
        if before is not None:
            return now == before._replace(objects=before.objects + _SHIFT)
        # Memory that cannot be resized belongs to another object, such as a numpy array.
        return now == _FRESH and result.untyped_storage().resizable()


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


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is large, and its memory belongs to torch or to a message, so that references can be counted."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.nbytes >= LARGE
        and tensor.grad_fn is None
        and not tensor.requires_grad
        and not tensor.is_shared()
    )


class _Probe(Holders):
    """Measures the counts of a result without other references, which depend on the version of Python."""

    def _is_alone(self, result: torch.Tensor, now: _Count) -> bool:
        self.seen = now
        return False


def _calibrated() -> tuple[int, _Count]:
    """The change of the count of an argument that is returned, and the count of a new tensor."""
    arguments = (torch.empty(LARGE, dtype=torch.uint8),)
    probe = _Probe(arguments)
    (before,) = probe._before.values()
    probe.sent((lambda tensor: tensor)(arguments[0]))
    shift = probe.seen.objects - before.objects
    probe.sent((lambda: torch.empty(LARGE, dtype=torch.uint8))())
    return shift, probe.seen


_SHIFT, _FRESH = _calibrated()
