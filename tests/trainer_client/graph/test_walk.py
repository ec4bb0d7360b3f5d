"""Tests which leaves a backward reaches, and that only passes that share leaves wait for each other."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ps_wire.errors import InvalidArgumentError
from tests.ps_service.threads import PATIENCE, Watched, Worker
from trainer_client.graph.leaves import Reservations, borrowed_grads
from trainer_client.graph.nodes import ROOT
from trainer_client.graph.short_graphs import reached_from


def leaf(*shape: int) -> torch.Tensor:
    return torch.ones(shape, requires_grad=True)


def ids(tensors: Any) -> set[int]:
    return {id(tensor) for tensor in tensors}


# Leaves


def test_the_leaves_of_a_module_are_its_parameters() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    x = torch.ones(4, 2)
    assert ids(reached_from([net(x).sum()])[0]) == ids(net.parameters())


def test_leaves_that_are_reached_twice_are_found_once() -> None:
    a, b = leaf(2), leaf(2)
    shared = a * b
    found = reached_from([(shared * shared).sum(), shared.sum(), a.sum()])[0]
    assert len(found) == 2
    assert ids(found) == ids([a, b])


def test_leaves_that_are_not_reached_are_not_found() -> None:
    a, frozen, elsewhere = leaf(2), torch.ones(2), leaf(2)
    (elsewhere * 2).sum()
    assert ids(reached_from([(a * frozen + elsewhere.detach()).sum()])[0]) == ids([a])


def test_a_root_may_be_a_leaf_itself() -> None:
    a = leaf()
    assert ids(reached_from([a, torch.ones(())])[0]) == ids([a])


def test_a_root_without_history_has_no_leaves() -> None:
    assert reached_from([torch.ones(2)])[0] == []
    assert reached_from([])[0] == []


def test_the_recorders_own_leaf_is_left_out() -> None:
    a = leaf(2)
    assert ids(reached_from([(a.sum() + ROOT.sum())])[0]) == ids([a])


def test_a_deep_graph_needs_no_deep_stack() -> None:
    a = leaf()
    y = a
    for _ in range(20_000):
        y = y + 1
    assert ids(reached_from([y])[0]) == ids([a])


def test_a_wide_graph_is_walked_once() -> None:
    a = leaf()
    y = a
    for _ in range(200):
        y = y + y  # 2**200 paths
    assert ids(reached_from([y])[0]) == ids([a])


def test_autograd_functions_of_the_user_may_keep_anything() -> None:
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.variable = "not a leaf"
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    a = leaf(2)
    assert ids(reached_from([Keeps.apply(a).sum()])[0]) == ids([a])


# Gradients that are lent


def test_gradients_are_put_back_as_they_were() -> None:
    a, b = leaf(2), leaf(2)
    a.grad = before = torch.full((2,), 7.0)
    with borrowed_grads([a, b]):
        assert a.grad is b.grad is None
        (a * 2 + b).sum().backward()
        assert a.grad.tolist() == [2.0, 2.0]
    assert a.grad is before
    assert before.tolist() == [7.0, 7.0]
    assert b.grad is None


def test_gradients_are_put_back_when_the_pass_raises() -> None:
    a = leaf(2)
    a.grad = before = torch.full((2,), 7.0)
    with pytest.raises(ZeroDivisionError), borrowed_grads([a]):
        a.grad = torch.zeros(2)
        raise ZeroDivisionError
    assert a.grad is before


# Passes in several threads


def watched() -> tuple[Reservations, Watched]:
    reservations = Reservations()
    changed = reservations._changed = Watched()
    return reservations, changed


def test_passes_that_share_a_leaf_run_one_after_the_other() -> None:
    reservations, changed = watched()
    a, b, c = leaf(), leaf(), leaf()
    order: list[str] = []

    def second() -> None:
        with reservations.of([b, c]):
            order.append("second")

    with reservations.of([a, b]):
        other = Worker(second)
        changed.seen()
        order.append("first")
    other.result()
    assert order == ["first", "second"]


def test_passes_that_share_nothing_run_side_by_side() -> None:
    reservations, _ = watched()
    together = threading.Barrier(2)

    def run(leaves: list[torch.Tensor]) -> None:
        with reservations.of(leaves):
            together.wait(PATIENCE)

    for worker in [
        Worker(lambda: run([leaf()])),
        Worker(lambda: run([leaf()])),
    ]:
        worker.result()


def test_a_pass_without_leaves_does_not_wait() -> None:
    reservations, changed = watched()
    with reservations.of([leaf()]), reservations.of([]):
        assert changed.unused


def test_a_pass_that_raises_lets_the_next_one_in() -> None:
    reservations, changed = watched()
    a = leaf()
    with pytest.raises(ZeroDivisionError), reservations.of([a]):
        raise ZeroDivisionError
    with reservations.of([a]):
        assert changed.unused


def test_many_threads_over_few_leaves_never_meet() -> None:
    reservations = Reservations()
    leaves = [leaf() for _ in range(3)]

    def run(which: int) -> None:
        mine = [leaves[which], leaves[(which + 1) % 3]]
        for _ in range(50):
            with reservations.of(mine), borrowed_grads(mine):
                (mine[0] * 2 + mine[1] * 3).backward()
                assert [each.grad.item() for each in mine] == [2.0, 3.0]

    for worker in [Worker(lambda w=which: run(w)) for which in (0, 1, 2, 0)]:
        worker.result()
    assert not reservations._busy


def test_a_reentrant_checkpoint_is_refused() -> None:
    weight, x = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    kept = checkpoint(lambda x: x * weight, x, use_reentrant=False)
    assert {id(leaf) for leaf in reached_from([kept])[0]} >= {id(x)}
    with pytest.raises(InvalidArgumentError, match="use_reentrant=False"):
        reached_from([checkpoint(lambda x: x * weight, x, use_reentrant=True)])
