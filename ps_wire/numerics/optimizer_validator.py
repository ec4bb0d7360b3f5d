"""Tests options and state of an optimizer on a scratch parameter, before it changes a real one. Torch checks most
options only during a step, which must not fail halfway, and loads any state without a check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import optim
from torch.nn import Parameter

from ps_wire.close_names import hint
from ps_wire.errors import InvalidArgumentError

# Optimizers whose state depends on the shape of the parameter, or has tensors of other shapes.
_FREE_SHAPES = (optim.Adafactor, optim.LBFGS)


class OptimizerValidator:
    """Checks options and states for one optimizer of torch, made with these options. Other classes are not checked.
    Making it raises `InvalidArgumentError` if the optimizer cannot take a step with the options of one of its
    groups."""

    def __init__(self, optimizer: optim.Optimizer, options: Mapping[str, Any]) -> None:
        self._optimizer = optimizer
        self._options = dict(options)
        for group in optimizer.param_groups:
            self._try(group)

    def check_options(self, groups: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        """Checks that options of some of its groups can be changed: there may be no such option, the optimizer may be
        unable to work with the value, or steps may have been made with which it cannot be changed any more."""
        known = self._optimizer.param_groups[0].keys() - {"params"}
        for name in options:
            if name not in known:
                raise InvalidArgumentError(
                    f"the optimizer has no option {name!r}; it has {sorted(known)}{hint(name, known)}"
                )
        for group in groups:
            kept, _ = self._try({**group, **options})
            states = [self._optimizer.state.get(parameter) for parameter in group["params"]]
            if any(state and kept.keys() - state.keys() for state in states):
                raise InvalidArgumentError(f"{sorted(options)} cannot be changed any more: steps have been made")

    def check_state(self, state: Any) -> None:
        """Checks that it can continue from a state."""
        entries, groups = _parts_of(state)
        own = self._optimizer.param_groups
        found, wanted = ([len(group["params"]) for group in each] for each in (groups, own))
        if found != wanted:
            raise InvalidArgumentError(f"the state has groups of {found} parameters, this optimizer has {wanted}")
        for mine, group in zip(own, groups, strict=True):
            kept, is_needed = self._try(group)
            for index, parameter in zip(group["params"], mine["params"], strict=True):
                if index in entries or is_needed:
                    self._check_entries(index, entries.get(index), parameter, kept)
        unknown = entries.keys() - {index for group in groups for index in group["params"]}
        if unknown:
            raise InvalidArgumentError(f"the state names parameters {sorted(map(str, unknown))} of no group")

    def _try(self, group: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """The state that it keeps for a scratch parameter after steps, and whether that must exist before the first."""
        if not is_torchs(self._optimizer):
            return {}, False
        scratch = _scratch(self._optimizer)
        gradient = torch.ones_like(scratch)
        scratch.grad = gradient.to_sparse() if type(self._optimizer) is optim.SparseAdam else gradient
        try:
            optimizer = type(self._optimizer)([scratch], **self._options)
            fresh = optimizer.state_dict()["state"]
            optimizer.load_state_dict({"state": fresh, "param_groups": [{**group, "params": [0]}]})
            for _ in range(2):  # the first one leaves some options out
                optimizer.step()
        except Exception as error:
            name, reason = type(self._optimizer).__name__, f"{type(error).__name__}: {error}"
            raise InvalidArgumentError(f"{name} cannot make a step with these options: {reason}") from None
        return {} if isinstance(optimizer, _FREE_SHAPES) else dict(optimizer.state[scratch]), bool(fresh)

    def _check_entries(self, index: int, entries: Any, parameter: torch.Tensor, kept: Mapping[str, Any]) -> None:
        if not isinstance(entries, Mapping):
            raise InvalidArgumentError(f"the state of parameter {index} is missing, or not a dict")
        for key, example in kept.items():
            if key not in entries or isinstance(example, torch.Tensor) != isinstance(entries[key], torch.Tensor):
                raise InvalidArgumentError(f"the state of parameter {index} has no {key!r}, or not of the right kind")
        if isinstance(self._optimizer, _FREE_SHAPES):
            return
        for key, value in entries.items():
            if isinstance(value, torch.Tensor) and value.numel() != 1 and value.shape != parameter.shape:
                raise InvalidArgumentError(
                    f"state {key!r} of parameter {index} has shape {tuple(value.shape)}, "
                    f"the parameter {tuple(parameter.shape)}"
                )


def is_torchs(optimizer: optim.Optimizer) -> bool:
    """Whether an optimizer is one of torch's own."""
    return f"{type(optimizer).__module__}.".startswith("torch.optim.")


def _scratch(optimizer: optim.Optimizer) -> Parameter:
    """A parameter like those of an optimizer, of which some may be integers that are never trained."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    like = next((each for each in parameters if each.is_floating_point() or each.is_complex()), torch.empty(0))
    return Parameter(torch.zeros(1, 1, dtype=like.dtype, device=like.device))


def _parts_of(state: Any) -> tuple[Mapping[Any, Any], list[Mapping[str, Any]]]:
    if not isinstance(state, Mapping) or not isinstance(state.get("state"), Mapping):
        raise InvalidArgumentError("an optimizer's state is a dict with 'state' and 'param_groups'")
    groups = state.get("param_groups")
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups):
        raise InvalidArgumentError("the parameter groups of an optimizer's state are a list of dicts")
    for group in groups:
        members = group.get("params")
        if not isinstance(members, list) or not all(isinstance(index, int) for index in members):
            raise InvalidArgumentError("each group of an optimizer's state has 'params', a list of whole numbers")
    return state["state"], groups
