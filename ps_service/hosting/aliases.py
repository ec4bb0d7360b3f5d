"""Finds other tensors and arrays in the memory of parameters, which steps would not update."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from ps_service.hosting.structure import all_below
from ps_wire.errors import InvalidArgumentError

WHY: Final = "a step may move a hosted parameter to other memory, and the values there would not change"


class Extent(NamedTuple):
    """A range of memory: its first address, and the address after its last."""

    first: int
    last: int

    def meets(self, other: Extent) -> bool:
        return self.first < other.last and other.first < self.last


def check_aliases(class_name: str, module: nn.Module) -> None:
    """Raises `InvalidArgumentError` for a new module whose parameters share memory with another tensor or array that it
    keeps."""
    parameters = {name: each for name, each in module.named_parameters() if _has_memory(each)}
    extents = sorted((_extent(each), name) for name, each in parameters.items())
    for (lower, name), (upper, other) in itertools.pairwise(extents):
        if lower.meets(upper) and _share(parameters[name], parameters[other]):
            raise InvalidArgumentError(
                f"parameters {name!r} and {other!r} of {class_name} lie in the same memory, but {WHY}. To tie them, "
                "let one nn.Parameter be an attribute of both modules"
            )
    own = {id(each) for each in module.parameters()}
    for where, kept in _kept(module):
        if id(kept) in own:
            continue
        extent = _extent(kept)
        for each, name in extents:
            if each.meets(extent) and (not isinstance(kept, torch.Tensor) or _share(parameters[name], kept)):
                raise InvalidArgumentError(
                    f"attribute {where!r} of {class_name} lies in the memory of parameter {name!r}, but {WHY}. Keep a "
                    "copy of it, or compute it from the parameter when the module is called"
                )


def is_within(tensor: torch.Tensor, parameters: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor shares the memory of one of these parameters."""
    if not _has_memory(tensor):
        return False
    memory = tensor.untyped_storage().data_ptr()
    same = [each for each in parameters if _has_memory(each) and each.untyped_storage().data_ptr() == memory]
    return any(_extent(tensor).meets(_extent(each)) and _share(each, tensor) for each in same)


def _kept(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The tensors and arrays behind the attributes of a module and its submodules, with the names of the attributes."""
    for prefix, child in module.named_modules():
        recomputed = {getattr(hook, "name", "") for hook in child._forward_pre_hooks.values() if _is_torchs(hook)}
        for name, value in vars(child).items():
            if name in ("_parameters", "_modules") or name in recomputed:
                continue
            for each in all_below(value, into_modules=False):
                if _has_memory(each) if isinstance(each, torch.Tensor) else _is_array(each):
                    yield f"{prefix}.{name}" if prefix else name, each


def _is_torchs(hook: Any) -> bool:
    """Whether a hook is one of torch's that set an attribute before each forward, as that of `spectral_norm`."""
    return type(hook).__module__.startswith("torch.nn.utils.")


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "strides") and value.ndim > 0 and value.size > 0


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() > 0 and tensor.device.type != "meta"


def _extent(value: Any) -> Extent:
    if isinstance(value, torch.Tensor):
        size = value.element_size()
        first, strides = value.data_ptr(), [each * size for each in value.stride()]
    else:
        first, size, strides = value.__array_interface__["data"][0], value.itemsize, value.strides
    reach = [(count - 1) * stride for count, stride in zip(value.shape, strides, strict=True)]
    return Extent(first + sum(min(each, 0) for each in reach), first + sum(max(each, 0) for each in reach) + size)


def _share(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors with overlapping ranges have an element in common; columns of one matrix do not."""
    memory = one.untyped_storage()
    if memory.data_ptr() != other.untyped_storage().data_ptr() or one.dtype != other.dtype:
        return True
    places = torch.arange(memory.nbytes() // one.element_size(), device="cpu")
    mine, theirs = (places.as_strided(each.shape, each.stride(), each.storage_offset()) for each in (one, other))
    return bool(torch.isin(mine, theirs).any())
