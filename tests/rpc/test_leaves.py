"""Tensors behind references are leaves: passes find their gradients, and optimizers train them, as local torch does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import optim

from ps_wire.errors import InvalidArgumentError
from tests.rpc import leaves as s
from trainer_client import autograd, rpc
from trainer_client.optim import DistributedOptimizer

OWNER, OTHER, THIRD = "worker1", "worker2", "worker3"

X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])

OPTIMIZERS: list[tuple[type[optim.Optimizer], dict[str, Any]]] = [
    (optim.SGD, {"lr": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    (optim.Adam, {"lr": 0.05, "amsgrad": True}),
    (optim.Adagrad, {"lr": 0.05}),
    (optim.LBFGS, {"lr": 0.1}),
]


@pytest.fixture(autouse=True)
def first_values() -> None:
    for member in (OWNER, OTHER, THIRD):
        rpc.rpc_sync(member, s.set_back)


def here() -> torch.Tensor:
    """The leaf of a local program, with the values that those of the members begin with."""
    return s.START.clone().requires_grad_()


@pytest.mark.parametrize("make", [s.fresh, s.get_shared])
@pytest.mark.parametrize(("cls", "options"), OPTIMIZERS[:-1])
def test_steps_are_those_of_local_torch(make: Any, cls: type[optim.Optimizer], options: dict[str, Any]) -> None:
    w, local = rpc.remote(OWNER, make), here()
    optimizer, reference = DistributedOptimizer(cls, [w], **options), cls([local], **options)
    for step in range(4):
        x = X * (step + 1)
        reference.zero_grad()
        (local * x).pow(2).sum().backward()
        reference.step()
        with autograd.context() as context_id:
            autograd.backward(context_id, [rpc.rpc_sync(OWNER, s.times, args=(w, x)).pow(2).sum()])
            assert torch.equal(rpc.rpc_sync(OWNER, s.gradient_of, args=(context_id, w)), local.grad)
            optimizer.step(context_id)
        assert torch.equal(w.to_here(), local)


def test_a_leaf_that_a_call_of_the_pass_has_made_is_the_same_for_all_calls() -> None:
    local = here()
    (local * X).sum().backward()
    with autograd.context() as context_id:
        w = rpc.remote(OWNER, s.fresh)
        optimizer = DistributedOptimizer(optim.SGD, [w], lr=0.5)
        autograd.backward(context_id, [rpc.rpc_sync(OWNER, s.times, args=(w, X)).sum()])
        assert torch.equal(rpc.rpc_sync(OWNER, s.gradient_of, args=(context_id, w)), local.grad)
        optimizer.step(context_id)
    assert torch.equal(w.to_here(), local - 0.5 * local.grad)


def test_gradients_go_back_through_a_copy() -> None:
    w, local = rpc.remote(OWNER, s.fresh), here()
    (local * local * X).sum().backward()
    with autograd.context() as context_id:
        first, second = w.to_here(), w.to_here()
        assert first is not second and first.requires_grad
        autograd.backward(context_id, [(first * second * X).sum()])
        assert torch.equal(rpc.rpc_sync(OWNER, s.gradient_of, args=(context_id, w)), local.grad)
        assert autograd.get_gradients(context_id) == {}, "the leaf is on its owner, and its copies are no leaves"


def test_two_references_to_one_tensor() -> None:
    first, second, local = rpc.remote(OWNER, s.get_shared), rpc.remote(OWNER, s.get_shared), here()
    reference = optim.SGD([local], lr=0.1, momentum=0.9)
    optimizer = DistributedOptimizer(optim.SGD, [second], lr=0.1, momentum=0.9)
    for _ in range(3):
        reference.zero_grad()
        (local * X + local).sum().backward()
        reference.step()
        with autograd.context() as context_id:
            product = rpc.rpc_sync(OWNER, s.times, args=(first, X))
            autograd.backward(context_id, [(product + second.to_here()).sum()])
            for rref in (first, second):
                assert torch.equal(rpc.rpc_sync(OWNER, s.gradient_of, args=(context_id, rref)), local.grad)
            optimizer.step(context_id)
    assert torch.equal(first.to_here(), local)


def test_one_optimizer_does_not_take_one_tensor_twice() -> None:
    # Torch only warns, and then steps the tensor twice.
    both = [rpc.remote(OWNER, s.get_shared) for _ in range(2)]
    with pytest.raises(InvalidArgumentError, match="twice"):
        DistributedOptimizer(optim.SGD, both, lr=0.1)


@pytest.mark.parametrize("make", [s.first_row, s.squares])
def test_what_was_computed_from_a_leaf_leads_to_it_and_cannot_be_optimized(make: Any) -> None:
    local = here()
    (local[0] if make is s.first_row else local * local).sum().backward()
    computed = rpc.remote(OWNER, make)
    with pytest.raises(InvalidArgumentError, match="computed from other tensors"):
        DistributedOptimizer(optim.SGD, [computed], lr=0.1)
    with autograd.context() as context_id:
        autograd.backward(context_id, [computed.to_here().sum()])
        assert torch.equal(rpc.rpc_sync(OWNER, s.gradient_of_shared, args=(context_id,)), local.grad)


def test_what_a_call_of_the_pass_has_computed_leads_to_the_leaf_and_cannot_be_optimized() -> None:
    local = here()
    (local[0] * 3).sum().backward()
    with autograd.context() as context_id:
        row = rpc.remote(OWNER, s.first_row)
        with pytest.raises(InvalidArgumentError, match="computed from other tensors"):
            DistributedOptimizer(optim.SGD, [row], lr=0.1)
        autograd.backward(context_id, [rpc.rpc_sync(OWNER, s.times, args=(row, torch.tensor(3.0))).sum()])
        assert torch.equal(rpc.rpc_sync(OWNER, s.gradient_of_shared, args=(context_id,)), local.grad)


def test_a_second_backward_of_a_graph_on_the_owner_is_refused_as_in_torch() -> None:
    squares = rpc.remote(OWNER, s.squares)
    with autograd.context() as context_id:
        autograd.backward(context_id, [squares.to_here().sum()])
    with autograd.context() as context_id:
        value = squares.to_here()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            autograd.backward(context_id, [value.sum()])


def test_a_tensor_may_be_changed_in_place_between_passes_but_not_inside_of_one() -> None:
    w, local = rpc.remote(OWNER, s.get_shared), here()
    optimizer, reference = DistributedOptimizer(optim.Adam, [w], lr=0.1), optim.Adam([local], lr=0.1)
    for value in (0.5, 2.0):
        with torch.no_grad():
            local.fill_(value)
        rpc.rpc_sync(OWNER, s.fill, args=(value,))
        reference.zero_grad()
        (local * local * X).sum().backward()
        reference.step()
        with autograd.context() as context_id:
            product = rpc.rpc_sync(OWNER, s.times, args=(w, w.to_here() * X))
            autograd.backward(context_id, [product.sum()])
            optimizer.step(context_id)
        assert torch.equal(w.to_here(), local)
    with autograd.context() as context_id:
        product = rpc.rpc_sync(OWNER, s.times, args=(w, X.requires_grad_()))
        rpc.rpc_sync(OWNER, s.fill, args=(1.0,))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            autograd.backward(context_id, [product.sum()])
        assert rpc.rpc_sync(OWNER, s.gradient_of, args=(context_id, w)) is None
    X.requires_grad_(False)


def test_a_backward_that_fails_changes_nothing_and_the_next_pass_is_right() -> None:
    w, local = rpc.remote(OWNER, s.get_shared), here()
    optimizer, reference = DistributedOptimizer(optim.SGD, [w], lr=0.1), optim.SGD([local], lr=0.1)
    with autograd.context() as context_id:
        squares = rpc.remote(OWNER, s.squares)
        product = squares.to_here()
        rpc.rpc_sync(OWNER, s.fill, args=(3.0,))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            autograd.backward(context_id, [product.sum()])
        optimizer.step(context_id)
    assert torch.equal(w.to_here(), torch.full((2, 3), 3.0))
    with torch.no_grad():
        local.fill_(3.0)
    (local * X).sum().backward()
    reference.step()
    with autograd.context() as context_id:
        autograd.backward(context_id, [rpc.rpc_sync(OWNER, s.times, args=(w, X)).sum()])
        optimizer.step(context_id)
    assert torch.equal(w.to_here(), local)


def test_three_members_one_inside_the_other() -> None:
    first, second, third = here(), here(), here()
    local = [first, second, third]
    members = [OWNER, OTHER, THIRD]
    rrefs = [rpc.remote(member, s.get_shared) for member in members]
    optimizer = DistributedOptimizer(optim.SGD, rrefs, lr=0.01, momentum=0.9)
    reference = optim.SGD(local, lr=0.01, momentum=0.9)
    for _ in range(3):
        reference.zero_grad()
        (third * (second * (first * X))).sum().backward()
        reference.step()
        with autograd.context() as context_id:
            product = rpc.rpc_sync(OWNER, s.times_everywhere, args=(members[1:], X))
            autograd.backward(context_id, [product.sum()])
            for member, leaf in zip(members, local, strict=True):
                assert torch.equal(rpc.rpc_sync(member, s.gradient_of_shared, args=(context_id,)), leaf.grad)
            optimizer.step(context_id)
    for rref, leaf in zip(rrefs, local, strict=True):
        assert torch.equal(rref.to_here(), leaf)


def test_a_member_between_the_trainer_and_the_owner() -> None:
    w, local = rpc.remote(OWNER, s.fresh), here()
    (local * X * 2 + local).sum().backward()
    with autograd.context() as context_id:
        product = rpc.rpc_sync(OTHER, s.times_there, args=(OWNER, w, X))
        autograd.backward(context_id, [(product + w.to_here()).sum()])
        assert torch.equal(rpc.rpc_sync(OWNER, s.gradient_of, args=(context_id, w)), local.grad)


def test_copies_outside_of_a_pass_require_grad_and_are_leaves() -> None:
    w = rpc.remote(OWNER, s.get_shared)
    for copy in (w.to_here(), rpc.rpc_sync(OWNER, s.get_shared), rpc.rpc_sync(OWNER, s.squares)):
        assert copy.requires_grad and copy.is_leaf
    assert not rpc.rpc_sync(OWNER, torch.add, args=(X, X)).requires_grad
    copy = w.to_here()
    (copy * X).sum().backward()
    assert torch.equal(copy.grad, X)


@pytest.mark.parametrize("owner", [OWNER, "worker0"])
def test_arguments_outside_of_a_pass_are_leaves_that_can_be_trained(owner: str) -> None:
    local = here()
    rpc.rpc_sync(owner, s.keep, args=("w", torch.nn.Parameter(s.START.clone())))
    made = rpc.remote(owner, s.Keeper, args=(s.START.clone().requires_grad_(),))
    for w in (rpc.remote(owner, s.get_kept, args=("w",)), made.remote().weight()):
        optimizer = DistributedOptimizer(optim.SGD, [w], lr=0.1)
        with autograd.context() as context_id:
            autograd.backward(context_id, [rpc.rpc_sync(owner, s.times, args=(w, X)).sum()])
            optimizer.step(context_id)
        torch.testing.assert_close(w.to_here(), local - 0.1 * X)
    assert torch.equal(rpc.rpc_sync(owner, s.gradient_by_itself, args=(local,)), 2 * local)
    assert not rpc.rpc_sync(owner, s.requires_grad, args=(X,))
    assert rpc.rpc_sync(owner, s.requires_grad, args=(local * 2,))
    assert local.grad is None
