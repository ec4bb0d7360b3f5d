"""Refuses hooks of hosted code that cannot run as they do locally."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from ps_service.hosting.structure import all_below
from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.autograd_graph import ACCUMULATING

_OF_SEVERAL: Final = "register_multi_grad_hook.<locals>.get_inner_hook"
"""Prefix of the qualified names of the functions that torch registers for a hook of several tensors."""


def check_hooks(class_name: str, module: nn.Module) -> None:
    """Raises `InvalidArgumentError` for a new module with hooks that would not run as they do locally."""
    for name, parameter in module.named_parameters():
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise InvalidArgumentError(
                f"{class_name} has registered a post-accumulate-grad hook at parameter {name!r}, but nothing is ever "
                "accumulated in the .grad of hosted parameters: gradients belong to passes. Use register_hook"
            )
        hooks = parameter._backward_hooks or {}
        if any(getattr(each, "__qualname__", "").startswith(_OF_SEVERAL) for each in hooks.values()):
            raise InvalidArgumentError(
                f"{class_name} has registered a hook of several tensors (register_multi_grad_hook) at parameter "
                f"{name!r}, which torch refuses in backwards that accumulate nothing. Register it in forward, at what "
                "that computes, or use register_hook"
            )
    names = {id(parameter): name for name, parameter in module.named_parameters() if _has_node(parameter)}
    for each in all_below(module) if names else ():
        if isinstance(each, ACCUMULATING) and id(each.variable) in names:
            raise InvalidArgumentError(
                f"{class_name} keeps the node of torch's graph that accumulates the gradient of parameter "
                f"{names[id(each.variable)]!r}; such hooks would never run, because nothing is ever "
                "accumulated there: gradients belong to passes. Use register_hook of the parameter"
            )


def hooked_nodes(leaves: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves whose accumulating node has hooks of its own; a backward here never runs that node."""
    nodes: list[tuple[torch.Tensor, Any]] = [(each, get_gradient_edge(each).node) for each in leaves if _has_node(each)]
    return [leaf for leaf, node in nodes if _has_any(node.register_prehook) or _has_any(node.register_hook)]


def _has_node(leaf: torch.Tensor) -> bool:
    return leaf.requires_grad and leaf._use_count() != 1  # type: ignore[attr-defined]


def _has_any(register: Callable[[Any], Any]) -> bool:
    # Torch has no function for this, but all hooks of a kind are in the dict that it adds one more to. Calls that share
    # the node may be asking the same.
    handle = register(_nothing)
    handle.remove()
    return any(hook is not _nothing for hook in list((handle.hooks_dict_ref() or {}).values()))


def _nothing(*_: Any) -> None:
    """A hook that never runs."""
