"""Steps of torch's SGD, Adagrad, Adam and AdamW on a CPU, with the same bits and fewer calls.

There torch steps one parameter after the other in Python, and adds sparse values with one BLAS call for each row. For
small parameters and for embeddings that takes longer than the arithmetic. Here an operation of the rule is one call of
`torch._foreach_*` for many parameters, and the rows of a sparse gradient are gathered, stepped and written back. Each
element goes through the operations of torch's own loop, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, Final

import torch
from torch import Tensor, nn, optim

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

_CLASSES: Final = (Tensor, nn.Parameter)

_DTYPES: Final = (torch.float32, torch.float64)
"""For others `torch._foreach_*` may round in another way."""

_COUNT: Final = itemgetter("step")
_MOMENTUM: Final = itemgetter("momentum_buffer")
_SUM: Final = itemgetter("sum")
_AVERAGE: Final = itemgetter("exp_avg")
_SQUARE: Final = itemgetter("exp_avg_sq")


def plan(optimizer: optim.Optimizer, present: Iterable[tuple[Tensor, int, Tensor]]) -> list[Callable[[], None]] | None:
    """The parts of a step, which can raise only for want of memory; the caller has gradients disabled.

    `present` has parameters, the numbers of their groups, and their gradients. None if only torch can make the step:
    for other classes, devices, layouts and options, and for the first step of a parameter, which makes its state.
    """
    rule = _RULES.get(type(optimizer))
    if rule is None:
        return None
    parts: list[Callable[[], None]] = []
    block: tuple[list[Tensor], list[Tensor], list[State]] = ([], [], [])
    known, left = -1, 0
    for parameter, number, gradient in present:
        if number != known:
            known, left, group = number, 0, optimizer.param_groups[number]
            if not _is_plain(group):
                return None
            names = () if rule is _sgd and not group["momentum"] else _STATES[rule]
            takes_rows = not group["weight_decay"] and (rule is _adagrad or not names)
        if (
            type(parameter) not in _CLASSES
            or type(gradient) is not Tensor
            or not parameter.is_cpu
            or parameter.dtype not in _DTYPES
            or gradient.dtype is not parameter.dtype
            or gradient.shape != parameter.shape
        ):
            return None
        state: State = optimizer.state.get(parameter, _NO_STATE)
        for name in names:
            value = state.get(name)
            if (
                value is None
                or value.layout is not torch.strided
                or (name != "step" and value.shape != parameter.shape)
            ):
                return None
        if gradient.layout is torch.strided:
            if left <= 0:
                left, block = _BLOCK_BYTES, ([], [], [])
                parts.append(partial(rule, *block, group))
            block[0].append(parameter)
            block[1].append(gradient)
            block[2].append(state)
            left -= parameter.nbytes
        elif (
            takes_rows
            and gradient.layout is torch.sparse_coo
            and gradient.sparse_dim() == 1
            and gradient.dense_dim() > 0  # single numbers torch adds with another rounding
            and parameter.numel()
            and parameter.is_contiguous()
        ):
            parts.append(partial(_step_rows, rule, parameter, gradient, state, group))
        else:
            return None
    return parts


def _is_plain(group: Group) -> bool:
    if any(map(group.get, _OTHER_WAYS)):
        return False
    return {*map(type, map(group.get, _NUMBERS)), *map(type, group.get("betas", ()))} <= _PLAIN


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


def _step_rows(rule: Rule, parameter: Tensor, gradient: Tensor, state: State, group: Group) -> None:
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

_STATES: Final[Mapping[Rule, tuple[str, ...]]] = {
    _sgd: ("momentum_buffer",),
    _adagrad: ("step", "sum"),
    _adam: ("step", "exp_avg", "exp_avg_sq"),
}

_RULES: Final[Mapping[type, Rule]] = {
    optim.SGD: _sgd,
    optim.Adagrad: _adagrad,
    optim.Adam: _adam,
    optim.AdamW: _adam,
}
