"""A member that trains its own tensors, with calls of others that use them in the same pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim

from tests.rpc import leaves as s
from trainer_client import autograd, rpc
from trainer_client.optim import DistributedOptimizer, clip_grad_norm_

ME, OTHER = "worker0", "worker1"

X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])

STEPS: list[tuple[type[optim.Optimizer], dict[str, Any]]] = [
    (optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    (optim.Adam, {"lr": 0.05}),
]


@pytest.fixture(autouse=True)
def first_values() -> None:
    for member in (ME, OTHER):
        rpc.rpc_sync(member, s.set_back)


def reference_to_own(how: str) -> Any:
    """What the optimizer of a program may be given for a tensor of its own process."""
    ways = {
        "tensor": lambda: s.shared,
        "reference": lambda: rpc.RRef(s.shared),
        "remote": lambda: rpc.remote(ME, s.get_shared),
    }
    return ways[how]()


def everywhere() -> torch.Tensor:
    """Uses the tensor here, in a call to this member, and in a call that another member makes back."""
    here = s.shared * X
    itself = rpc.rpc_sync(ME, s.times_shared, args=(X,))
    back = rpc.rpc_sync(OTHER, s.asks_back, args=(ME, X))
    return here.sum() + (itself * itself).sum() + (back * 3).sum()


def local_everywhere(w: torch.Tensor) -> torch.Tensor:
    here = w * X
    return here.sum() + (here * here).sum() + (here * 3).sum()


@pytest.mark.parametrize("how", ["tensor", "reference", "remote"])
@pytest.mark.parametrize(("cls", "options"), STEPS)
def test_all_uses_of_a_pass_are_added_up(how: str, cls: type[optim.Optimizer], options: dict[str, Any]) -> None:
    local = s.START.clone().requires_grad_()
    optimizer, reference = DistributedOptimizer(cls, [reference_to_own(how)], **options), cls([local], **options)
    for _ in range(3):
        reference.zero_grad()
        local_everywhere(local).backward()
        reference.step()
        with autograd.context() as context_id:
            autograd.backward(context_id, [everywhere()])
            found = autograd.get_gradients(context_id)
            assert list(found) == [s.shared]
            torch.testing.assert_close(found[s.shared], local.grad)
            assert s.shared.grad is None
            optimizer.step(context_id)
        torch.testing.assert_close(s.shared, local)


def test_two_backwards_of_one_pass_add_up() -> None:
    local = s.START.clone().requires_grad_()
    (local_everywhere(local) + local.sum()).backward()
    with autograd.context() as context_id:
        autograd.backward(context_id, [everywhere()])
        autograd.backward(context_id, [s.shared.sum()])
        torch.testing.assert_close(autograd.get_gradients(context_id)[s.shared], local.grad)


@pytest.mark.parametrize("how", ["tensor", "reference", "remote"])
def test_clipping_counts_all_uses_once(how: str) -> None:
    local, there = s.START.clone().requires_grad_(), s.START.clone().requires_grad_()
    (local_everywhere(local) + (there * X).sum()).backward()
    norm = nn.utils.clip_grad_norm_([local, there], 1.0)
    with autograd.context() as context_id:
        autograd.backward(context_id, [everywhere() + rpc.rpc_sync(OTHER, s.times_shared, args=(X,)).sum()])
        parameters = [reference_to_own(how), rpc.remote(OTHER, s.get_shared)]
        torch.testing.assert_close(clip_grad_norm_(context_id, parameters, 1.0), norm)
        torch.testing.assert_close(autograd.get_gradients(context_id)[s.shared], local.grad)


def test_the_value_on_its_owner_is_the_tensor_itself() -> None:
    w = rpc.remote(ME, s.get_shared)
    assert w.to_here() is s.shared and w.local_value() is s.shared
    with autograd.context():
        assert w.to_here() is s.shared and w.local_value() is s.shared


@pytest.mark.parametrize("use", ["to_here", "local_value"])
def test_a_result_of_the_pass_on_its_owner_has_a_history(use: str) -> None:
    local = s.START.clone().requires_grad_()
    x, there = X.clone().requires_grad_(), X.clone().requires_grad_()
    ((local * there) * 2).sum().backward()
    with autograd.context() as context_id:
        product = rpc.remote(ME, s.times_shared, args=(x,))
        autograd.backward(context_id, [(getattr(product, use)() * 2).sum()])
        found = autograd.get_gradients(context_id)
        assert torch.equal(found[s.shared], local.grad) and torch.equal(found[x], there.grad)


def test_a_module_that_its_owner_also_uses_itself() -> None:
    module, local = rpc.remote(ME, nn.Linear, args=(3, 2)), nn.Linear(3, 2)
    with torch.no_grad():
        for own, other in zip(module.local_value().parameters(), local.parameters(), strict=True):
            other.copy_(own)
    rrefs = [rpc.RRef(parameter) for parameter in module.local_value().parameters()]
    (local(X).sum() + local(X).pow(2).sum()).backward()
    with autograd.context() as context_id:
        loss = module.local_value()(X).sum() + rpc.rpc_sync(ME, s.run_module, args=(module, X)).pow(2).sum()
        autograd.backward(context_id, [loss])
        found = autograd.get_gradients(context_id)
        for rref, other in zip(rrefs, local.parameters(), strict=True):
            torch.testing.assert_close(found[rref.local_value()], other.grad)


def test_a_graph_of_the_pass_in_a_reference_is_refused_by_other_calls() -> None:
    # Its nodes belong to the backward of this member, which cannot run for a call at the same time.
    with autograd.context() as context_id:
        product = rpc.RRef(rpc.rpc_sync(OTHER, s.times_shared, args=(X,)))
        doubled = rpc.rpc_sync(ME, s.times, args=(product, torch.tensor(2.0)))
        with pytest.raises(RuntimeError, match="got that part as an RRef, pass it the tensor itself"):
            autograd.backward(context_id, [doubled.sum()])


def test_passes_of_two_members_train_one_tensor_at_once() -> None:
    w = rpc.RRef(s.shared)
    mine = DistributedOptimizer(optim.SGD, [rpc.remote(ME, s.get_shared)], lr=1.0)
    theirs = rpc.rpc_async(OTHER, s.steps_alone, args=(w, ME, 20))
    for _ in range(20):
        with autograd.context() as context_id:
            autograd.backward(context_id, [(s.shared * 2).sum()])
            assert torch.equal(autograd.get_gradients(context_id)[s.shared], torch.full((2, 3), 2.0))
            mine.step(context_id)
    theirs.wait()
    torch.testing.assert_close(s.shared.detach(), s.START - 60)


def test_two_contexts_at_once_keep_their_gradients_apart() -> None:
    w = rpc.remote(OTHER, s.get_shared)
    with autograd.context() as first:
        product = rpc.rpc_sync(OTHER, s.times, args=(w, X))
        there = rpc.rpc_sync(OTHER, s.gradients_in_a_pass_of_its_own)
        autograd.backward(first, [product.sum()])
        assert torch.equal(rpc.rpc_sync(OTHER, s.gradient_of, args=(first, w)), X)
    assert torch.equal(there, torch.full((2, 3), 5.0))
