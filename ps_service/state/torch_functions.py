"""Torch's own functions that trainers may call on an owner: those that compute something from their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import torch
from torch.nn import functional

_OPERATIONS: Final = frozenset(name for name in dir(torch._C._VariableFunctions) if not name.startswith("_"))

_REFUSED: Final = frozenset(
    {
        # They open files, or take the address of memory.
        *("from_file", "frombuffer", "from_numpy", "asarray", "as_tensor"),
        # What they return is memory that held something else before.
        *("empty", "empty_like", "empty_permuted", "empty_quantized", "empty_strided", "new_empty"),
        *("new_empty_strided", "resize_", "resize_as_", "resize_as_sparse_"),
        # They belong to a device or a library that must be set up for them.
        *(name for name in _OPERATIONS if name.startswith(("cudnn_", "miopen_", "mkldnn_", "fbgemm_", "sym_"))),
    }
)

_OF_TENSORS: Final = frozenset(
    {
        "contiguous",
        "cpu",
        "dim",
        "double",
        "element_size",
        "expand",
        "expand_as",
        "float",
        "half",
        "int",
        "is_contiguous",
    }
    | {
        "item",
        "long",
        "ndimension",
        "nelement",
        "new_full",
        "new_ones",
        "new_tensor",
        "new_zeros",
        "repeat",
        "reshape_as",
    }
    | {"size", "stride", "sum_to_size", "to", "tolist", "type", "type_as", "unfold", "view", "view_as", "bool"}
)
"""Methods of tensors that are not operations by name."""


@cache
def torch_functions() -> dict[str, Callable[..., Any]]:
    """The functions, by name: of `torch`, of `torch.nn.functional`, and the methods of `torch.Tensor`."""
    found = {f"torch.{name}": getattr(torch, name) for name in _OPERATIONS - _REFUSED if hasattr(torch, name)}
    for name in torch.functional.__all__:
        found[f"torch.{name}"] = found[f"torch.functional.{name}"] = getattr(torch.functional, name)
    found.update((f"torch.nn.functional.{name}", function) for name, function in _functional())
    found.update({f"torch.Tensor.{name}": getattr(torch.Tensor, name) for name in tensor_methods()})
    return found


@cache
def tensor_methods() -> frozenset[str]:
    """Names of the methods that may be called on a tensor that an owner keeps."""
    operations = {name for name in dir(torch.Tensor) if not name.startswith("_") and name.rstrip("_") in _OPERATIONS}
    special = {name for name in dir(torch.Tensor) if name.startswith("__") and name.strip("_") in _OPERATIONS}
    return frozenset((operations | special | _OF_TENSORS) - _REFUSED)


def _functional() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, function in vars(functional).items():
        own = getattr(function, "__module__", None) in ("torch.nn.functional", "torch._C._nn", None)
        if own and callable(function) and not isinstance(function, type) and not name.startswith("_"):
            yield name, function
