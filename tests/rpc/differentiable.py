"""Functions through which gradients go back to other members."""

from __future__ import annotations

from typing import Any

import torch

from ps_service import remote
from tests.custom_functions import FailingBackward
from trainer_client import autograd, rpc
from trainer_client.nn import RemoteModule


@remote
def parameter_rrefs(module: rpc.RRef) -> list[rpc.RRef]:
    return [rpc.RRef(parameter) for parameter in module.local_value().parameters()]


@remote
def call_on_module(method: Any, module: rpc.RRef, *args: Any) -> Any:
    return method(module.local_value(), *args)


@remote
def my_mul_nested(to: str, back: str, x: torch.Tensor, y: torch.Tensor, depth: int) -> torch.Tensor:
    if depth == 0:
        return x * y
    return rpc.rpc_sync(to, my_mul_nested, args=(back, to, x, y, depth - 1)) + y


@remote
def gradient_sum(context_id: int) -> float:
    return float(sum(gradient.sum() for gradient in autograd.get_gradients(context_id).values()))


@remote
def fails_in_backward(x: torch.Tensor) -> torch.Tensor:
    return FailingBackward.apply(x)


@remote
def unused_second(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 3


@remote
def split_in_three(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.split(x, 2)


@remote
def forward_module(module: RemoteModule, x: torch.Tensor) -> torch.Tensor:
    return module.forward(x)


@remote
def gradients_of_hosted(context_id: int) -> list[torch.Tensor]:
    return list(autograd.get_gradients(context_id).values())


LEAF = torch.ones(3, 3, requires_grad=True)


@remote
def leaf_of_this_process() -> torch.Tensor:
    return LEAF


@remote
def gradient_of_leaf(context_id: int) -> torch.Tensor:
    return autograd.get_gradients(context_id)[LEAF]


@remote
def complex_args(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(tensors)


@remote
def ps_trainer(x: rpc.RRef, owner: str) -> torch.Tensor:
    """A whole pass that a call from another process runs; returns the gradient of its argument."""
    with autograd.context() as context_id:
        value = x.to_here().requires_grad_()
        y = rpc.rpc_sync(owner, my_add, args=(value, value))
        autograd.backward(context_id, [(y.to_dense() if y.is_sparse else y).sum()])
        (gradient,) = autograd.get_gradients(context_id).values()
        return gradient


@remote
def my_add(x: Any, y: Any) -> Any:
    return x + y
