"""Loads saved state into objects that were just constructed again."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ps_service.training.optimizers import HostedOptimizer

if TYPE_CHECKING:
    from ps_service.hosting.objects import HostedObject


def load(hosted: HostedObject, state: Any, version: int) -> None:
    """Loads the result of a `state_dict` into an object, constructed from the same arguments and not in use yet.

    An optimizer gets the number of steps that it has applied as its version. Raises what the object's `load_state_dict`
    raises, most likely because its class has changed.
    """
    if isinstance(hosted.value, nn.Module):
        _load_module(hosted.value, state)
    elif isinstance(hosted.value, HostedOptimizer):
        _load_optimizer(hosted.value.optimizer, state)
        hosted.value.version = version
    else:
        hosted.value.load_state_dict(state)


def freeze(hosted: HostedObject, names: Set[str]) -> None:
    """Sets `requires_grad` to False on the parameters of a module that were frozen."""
    for name, parameter in hosted.parameters.items():
        if parameter.requires_grad == (name in names):
            parameter.requires_grad_(name not in names)


def _load_module(module: nn.Module, state: dict[str, Any]) -> None:
    known = module.state_dict()
    for name in known.keys() | state.keys():
        path, _, leaf = name.rpartition(".")
        buffers = _submodule(module, path)._buffers
        if leaf in buffers:
            # `load_state_dict` copies into the constructor's tensor; code may have replaced that tensor since.
            made, value = buffers[leaf], state.get(name)
            buffers[leaf] = value.to(made.device) if made is not None and value is not None else value
    module.load_state_dict(state, strict=True)


def _submodule(module: nn.Module, path: str) -> nn.Module:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return nn.Module()  # load_state_dict will report the mismatch


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    optimizer.load_state_dict(state)
    # Torch casts loaded state to the parameter's dtype, which would change master weights, for example.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, entries in state["state"].items():
        if isinstance(place, int) and place < len(parameters) and isinstance(entries, dict):
            own = optimizer.state[parameters[place]]
            for key, value in entries.items():
                if isinstance(value, torch.Tensor) and isinstance(own.get(key), torch.Tensor):
                    own[key] = value.to(own[key].device)
