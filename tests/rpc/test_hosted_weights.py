"""Weights of modules that a member hosts, made by their class through `rpc.remote`, and trained as local torch does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim

from tests.rpc import leaves as s
from trainer_client import autograd, rpc
from trainer_client.optim import DistributedOptimizer

OWNER, OTHER = "worker1", "worker2"

IDS = torch.tensor([[1, 2, 4], [2, 2, 7]])


def pair(kind: str, sparse: bool) -> tuple[rpc.RRef, nn.Module]:
    """A module on a member, and a local one with the same weight."""
    local = s.Table(sparse)
    if kind == "user's class":
        return rpc.remote(OWNER, s.Table, args=(sparse,)), local
    weight = local.bag.weight.detach().clone()
    options = {"mode": "sum", "sparse": sparse, "_weight": weight}
    return rpc.remote(OWNER, nn.EmbeddingBag, args=(8, 3), kwargs=options), local


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize("kind", ["torch's class", "user's class"])
@pytest.mark.parametrize(
    ("sparse", "cls", "options"),
    [
        (False, optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (False, optim.Adam, {"lr": 0.1}),
        (True, optim.SGD, {"lr": 0.1}),
        (True, optim.SparseAdam, {"lr": 0.1}),
        (True, optim.Adagrad, {"lr": 0.1}),
    ],
)
def test_steps_are_those_of_local_torch(kind: str, sparse: bool, cls: type[Any], options: dict[str, Any]) -> None:
    module, local = pair(kind, sparse)
    weight = rpc.remote(OWNER, s.weight_of, args=(module,))
    optimizer = DistributedOptimizer(cls, [weight], **options)
    reference = cls(local.parameters(), **options)
    (own,) = local.parameters()
    for _ in range(3):
        reference.zero_grad()
        local(IDS).pow(2).sum().backward(retain_graph=True)
        local(IDS[:1]).sum().backward()
        reference.step()
        with autograd.context() as context_id:
            autograd.backward(context_id, [rpc.rpc_sync(OWNER, s.look_up, args=(module, IDS)).pow(2).sum()])
            autograd.backward(context_id, [rpc.rpc_sync(OWNER, s.look_up, args=(module, IDS[:1])).sum()])
            found = rpc.rpc_sync(OWNER, s.weight_gradient, args=(context_id, module))
            assert found.is_sparse is sparse and own.grad is not None
            torch.testing.assert_close(found.to_dense(), own.grad.to_dense())
            assert rpc.rpc_sync(OWNER, s.weight_is_a_key, args=(context_id, module)) == [True] * 3
            optimizer.step(context_id)
        torch.testing.assert_close(weight.to_here(), own.detach())


def test_gradients_go_back_through_a_copy_of_a_weight() -> None:
    module, local = pair("user's class", sparse=False)
    weight = rpc.remote(OWNER, s.weight_of, args=(module,))
    (own,) = local.parameters()
    (local(IDS).sum() + own.pow(2).sum()).backward()
    with autograd.context() as context_id:
        copy = weight.to_here()
        assert copy.requires_grad
        loss = rpc.rpc_sync(OWNER, s.look_up, args=(module, IDS)).sum() + copy.pow(2).sum()
        autograd.backward(context_id, [loss])
        torch.testing.assert_close(rpc.rpc_sync(OWNER, s.weight_gradient, args=(context_id, module)), own.grad)


def test_sparse_leaves() -> None:
    w = rpc.remote(OWNER, s.sparse_leaf)
    local = s.sparse_leaf()
    torch.sparse.sum(local * 3).backward()
    with autograd.context() as context_id:
        total = torch.sparse.sum(rpc.rpc_sync(OWNER, s.times, args=(w, torch.tensor(3.0))))
        autograd.backward(context_id, [total])
        found = rpc.rpc_sync(OWNER, s.gradient_of, args=(context_id, w))
    assert found.is_sparse and local.grad is not None
    torch.testing.assert_close(found.to_dense(), local.grad.to_dense())


def test_a_tensor_of_a_module_that_is_no_parameter() -> None:
    module, local = rpc.remote(OWNER, s.Offset), s.Offset()
    x = torch.ones(3)
    (local(x).sum() + local.offset.sum()).backward()
    offset = rpc.remote(OWNER, s.offset_of, args=(module,))
    optimizer = DistributedOptimizer(optim.SGD, [offset], lr=0.5)
    with autograd.context() as context_id:
        loss = rpc.rpc_sync(OWNER, s.run_module, args=(module, x)).sum() + offset.to_here().sum()
        autograd.backward(context_id, [loss])
        torch.testing.assert_close(rpc.rpc_sync(OWNER, s.gradient_of, args=(context_id, offset)), local.offset.grad)
        optimizer.step(context_id)
    torch.testing.assert_close(offset.to_here(), local.offset.detach() - 0.5 * local.offset.grad)


@pytest.mark.parametrize("direct", [False, True])
def test_a_leaf_that_a_module_uses_through_a_reference(direct: bool) -> None:
    w = rpc.remote(OWNER, s.fresh)
    module = rpc.remote(OWNER, s.Scaled, args=(w,))
    x = torch.tensor([1.0, 2.0, 3.0])
    with autograd.context() as context_id:
        y = module.rpc_sync().forward(x) if direct else rpc.rpc_sync(OWNER, s.run_module, args=(module, x))
        autograd.backward(context_id, [y.sum()])
        found = rpc.rpc_sync(OWNER, s.gradient_of, args=(context_id, w))
        assert torch.equal(found, x.expand(2, 3))
