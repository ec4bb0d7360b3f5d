"""Steps of torch's SGD, Adagrad, Adam and AdamW on a CPU, with the same bits and fewer calls.

There torch steps one parameter after the other in Python, and adds sparse values with one BLAS call for each row. For
small parameters and for embeddings that takes longer than the arithmetic. Here an operation of the rule is one call of
`torch._foreach_*` for many parameters, and the rows of a sparse gradient are gathered, stepped and written back. Each
element goes through the operations of torch's own loop, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final

import torch
from torch import Tensor, optim

from ps_wire.limits import MIB

Group = Mapping[str, Any]
State = Mapping[str, Tensor]
Rule = Callable[[list[Tensor], list[Tensor], list[State], Group], None]

_BLOCK_BYTES: Final = MIB
"""Bytes of parameters that are stepped together. They stay in the caches, and what the rule computes stays small."""

_OTHER_WAYS: Final = ("foreach", "fused", "maximize", "differentiable", "capturable", "amsgrad", "lr_decay")
"""Options with which torch steps in another way."""

_NUMBERS: Final = ("lr", "weight_decay", "momentum", "dampening", "eps")
"""Options that may be tensors as well, with which torch does other operations."""

_PLAIN: Final = {float, int, type(None)}

_DTYPES: Final = (torch.float32, torch.float64)
"""For others `torch._foreach_*` may round in another way."""

_COUNT: Final = itemgetter("step")
_MOMENTUM: Final = itemgetter("momentum_buffer")
_SUM: Final = itemgetter("sum")
_AVERAGE: Final = itemgetter("exp_avg")
_SQUARE: Final = itemgetter("exp_avg_sq")


def step(optimizer: optim.Optimizer) -> bool:
    """Does what the optimizer's own step does, without hooks. False, with nothing changed, if only torch can do it: for
    other classes, devices and options, and for the first step of a parameter, which makes its state."""
    rule = _RULES.get(type(optimizer))
    if rule is None:
        return False
    blocks: list[tuple[Group, list[Tensor], list[Tensor], list[State]]] = []
    sparse: list[tuple[Group, Tensor, Tensor, State]] = []
    for group in optimizer.param_groups:
        numbers = {*map(type, map(group.get, _NUMBERS)), *map(type, group.get("betas", ()))}
        if any(map(group.get, _OTHER_WAYS)) or not numbers <= _PLAIN:
            return False
        needed = ("momentum_buffer" if group["momentum"] else "") if rule is _sgd else "step"
        takes_rows = rule is not _adam and needed != "momentum_buffer" and not group["weight_decay"]
        left = 0
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            state: State = optimizer.state.get(parameter, _NO_STATE)
            if not parameter.is_cpu or parameter.dtype not in _DTYPES or (needed and state.get(needed) is None):
                return False
            if gradient.layout is torch.strided:
                if left <= 0:
                    left = _BLOCK_BYTES
                    blocks.append((group, [], [], []))
                _, parameters, gradients, states = blocks[-1]
                parameters.append(parameter)
                gradients.append(gradient)
                states.append(state)
                left -= parameter.nbytes
            elif (
                takes_rows
                and gradient.layout is torch.sparse_coo
                and (rule is _sgd or (gradient.sparse_dim() == 1 and gradient.dense_dim() > 0))
            ):
                # Sparse single numbers torch adds with another rounding than rows.
                sparse.append((group, parameter, gradient, state))
            else:
                return False
    with torch.no_grad():
        for options, parameters, gradients, states in blocks:
            rule(parameters, gradients, states, options)
        for each in sparse:
            _step_rows(rule, *each)
    return True


def _sgd(parameters: list[Tensor], gradients: list[Tensor], states: list[State], group: Group) -> None:
    if group["weight_decay"]:
        gradients = [*torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])]
    if group["momentum"]:
        buffers = list(map(_MOMENTUM, states))
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, gradients, alpha=1 - group["dampening"])
        gradients = [*torch._foreach_add(gradients, buffers, alpha=group["momentum"])] if group["nesterov"] else buffers
    torch._foreach_add_(parameters, gradients, alpha=-group["lr"])


def _adagrad(parameters: list[Tensor], gradients: list[Tensor], states: list[State], group: Group) -> None:
    torch._foreach_add_(list(map(_COUNT, states)), 1)
    if group["weight_decay"]:
        gradients = [*torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])]
    sums = list(map(_SUM, states))
    torch._foreach_addcmul_(sums, gradients, gradients, value=1)
    roots = [*torch._foreach_sqrt(sums)]
    torch._foreach_add_(roots, group["eps"])
    torch._foreach_addcdiv_(parameters, gradients, roots, value=-group["lr"])


def _adam(parameters: list[Tensor], gradients: list[Tensor], states: list[State], group: Group) -> None:
    lr, decay, (beta1, beta2) = group["lr"], group["weight_decay"], group["betas"]
    counts = list(map(_COUNT, states))
    torch._foreach_add_(counts, 1)
    steps = [count.item() for count in counts]
    if decay and group["decoupled_weight_decay"]:
        torch._foreach_mul_(parameters, 1 - lr * decay)
    elif decay:
        gradients = [*torch._foreach_add(gradients, parameters, alpha=decay)]
    averages, squares = list(map(_AVERAGE, states)), list(map(_SQUARE, states))
    torch._foreach_lerp_(averages, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
    roots = [*torch._foreach_sqrt(squares)]
    torch._foreach_div_(roots, [(1 - beta2**step) ** 0.5 for step in steps])
    torch._foreach_add_(roots, group["eps"])
    torch._foreach_addcdiv_(parameters, averages, roots, [-(lr / (1 - beta1**step)) for step in steps])


def _step_rows(rule: Rule, group: Group, parameter: Tensor, gradient: Tensor, state: State) -> None:
    """Steps the rows that have a gradient."""
    if rule is _sgd:
        parameter.add_(gradient, alpha=-group["lr"])
        return
    gradient = gradient.coalesce()
    rows, values = gradient._indices()[0], gradient._values()
    state["step"].add_(1)
    sums = state["sum"].index_select(0, rows).add_(values.pow(2))
    state["sum"].index_copy_(0, rows, sums)
    stepped = parameter.index_select(0, rows).add_(values / sums.sqrt_().add_(group["eps"]), alpha=-group["lr"])
    parameter.index_copy_(0, rows, stepped)


_NO_STATE: Final[State] = {}

_RULES: Final[Mapping[type, Rule]] = {
    optim.SGD: _sgd,
    optim.Adagrad: _adagrad,
    optim.Adam: _adam,
    optim.AdamW: _adam,
}
