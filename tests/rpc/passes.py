"""Ways to call a member in a pass, and local autograd to compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.rpc import situations as s
from trainer_client import autograd, rpc

TO = "worker1"


Call = Callable[..., Any]


def sync(to: str, function: Any, args: tuple[Any, ...]) -> Any:
    return rpc.rpc_sync(to, function, args=args)


def away(to: str, function: Any, args: tuple[Any, ...]) -> Any:
    return rpc.remote(to, function, args=args).to_here()


def later(to: str, function: Any, args: tuple[Any, ...]) -> Any:
    return rpc.rpc_async(to, function, args=args).wait()


def leaf(sparse: bool = False, *shape: int) -> torch.Tensor:
    x = torch.rand(*(shape or (3, 3)))
    return (x.to_sparse() if sparse else x).requires_grad_()


def where_it_is(x: torch.Tensor, value: float) -> torch.Tensor:
    """A gradient that is the same everywhere; that of a sparse tensor only where it has entries."""
    everywhere = torch.full(x.shape, value)
    return torch.where(x.detach().to_dense() == 0, 0.0, everywhere) if x.is_sparse else everywhere


def dense(x: torch.Tensor) -> torch.Tensor:
    return x.to_dense() if x.is_sparse else x


def same_as_local(compute: Callable[[Call], torch.Tensor], *leaves: torch.Tensor, call: Call = sync) -> None:
    """The same computation on members and here, with the same gradients."""
    with autograd.context() as context_id:
        autograd.backward(context_id, [dense(compute(call)).sum()])
        found = autograd.get_gradients(context_id)
    expected = dense(compute(lambda to, function, args: function(*args)))
    gradients = torch.autograd.grad(expected.sum(), leaves, allow_unused=True)
    for each, gradient in zip(leaves, gradients, strict=True):
        assert (gradient is None) == (each not in found)
        if gradient is not None:
            torch.testing.assert_close(dense(found[each]), dense(gradient))
        assert each.grad is None


def nested(call: Call, sparse: bool, to: str = "worker2") -> None:
    a, b = leaf(sparse), leaf(sparse)
    with autograd.context() as context_id:
        autograd.backward(context_id, [dense(call(TO, s.nested_add, (to, a, b))).sum()])
        found = autograd.get_gradients(context_id)
    for each in (a, b):
        torch.testing.assert_close(dense(found[each]), where_it_is(each, 1.0))
