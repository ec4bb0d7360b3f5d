"""Bound copies compute what the module would, whatever it is, and their gradients reach the leaves alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from ps_service.hosting.bound_copy_pool import BoundCopies
from ps_wire.codec.trees import tensors_in
from tests.ps_service.zoo import ZOO, born, fed


@contextmanager
def bound(
    pool: BoundCopies, module: nn.Module, training: bool = True
) -> Iterator[tuple[nn.Module, list[torch.Tensor]]]:
    """A bound copy of the module, and the leaves on it."""
    leaves = [parameter.data.requires_grad_(parameter.requires_grad) for parameter in module.parameters()]
    bound_copy = pool.lend(training, list(module.parameters()), leaves)
    try:
        yield bound_copy.module, leaves
    finally:
        pool.take_back(training, bound_copy)


def differentiated(result: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients of a loss over all outputs."""
    outputs = [output for output in tensors_in(result) if output.requires_grad]
    loss = sum((output * torch.arange(output.numel()).view(output.shape)).sum() for output in outputs)
    return list(torch.autograd.grad(loss, [each for each in tensors if each.requires_grad], allow_unused=True))


def same(one: list[torch.Tensor | None], other: list[torch.Tensor | None]) -> bool:
    return all(
        a is b is None or (a is not None and b is not None and torch.equal(a.to_dense(), b.to_dense()))
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ZOO)
def test_a_skin_is_like_the_module_itself(name: str, training: bool) -> None:
    local, hosted = born(name).train(training), born(name)
    pool = BoundCopies(hosted)
    for run in range(3):
        expected = local(*fed(name, run))
        # The second run holds the first one's bound copy back, so that a new one has to be made.
        with ExitStack() as stack:
            if run == 1:
                stack.enter_context(bound(pool, hosted, training))
            bound_copy, leaves = stack.enter_context(bound(pool, hosted, training))
            result = bound_copy(*fed(name, run))
            gradients = differentiated(result, leaves)
        assert same(list(tensors_in(result)), list(tensors_in(expected)))
        assert same(gradients, differentiated(expected, list(local.parameters())))
        assert same(list(hosted.buffers()), list(local.buffers())), "buffers are shared"
        assert all(parameter.grad is None for parameter in hosted.parameters())
    assert hosted.training, "the mode belongs to the call"


@pytest.mark.parametrize("name", ZOO)
def test_a_skin_follows_the_parameters(name: str) -> None:
    local, hosted = born(name), born(name)
    pool = BoundCopies(hosted)
    with bound(pool, hosted) as (bound_copy, _):
        bound_copy(*fed(name, 0))
    local(*fed(name, 0))
    with torch.no_grad():
        for each in (*local.parameters(), *hosted.parameters()):
            each.data = each * 1.5
    expected = local(*fed(name, 1))
    with bound(pool, hosted) as (bound_copy, _):
        assert same(list(tensors_in(bound_copy(*fed(name, 1)))), list(tensors_in(expected)))


@pytest.mark.parametrize("name", ZOO)
def test_without_grad_a_skin_is_like_the_module_too(name: str) -> None:
    local, hosted = born(name).eval(), born(name)
    pool = BoundCopies(hosted)
    for run in range(2):
        with torch.no_grad(), bound(pool, hosted, training=False) as (bound_copy, _):
            result = bound_copy(*fed(name, run))
            expected = local(*fed(name, run))
        assert same(list(tensors_in(result)), list(tensors_in(expected)))
        assert not any(output.requires_grad for output in tensors_in(result))


@pytest.mark.parametrize("name", ZOO)
def test_the_module_stays_whole(name: str) -> None:
    hosted = born(name)
    before = [id(parameter) for parameter in hosted.parameters()]
    names = list(hosted.state_dict())
    with bound(BoundCopies(hosted), hosted) as (bound_copy, leaves):
        bound_copy(*fed(name, 0))
        assert {id(leaf) for leaf in leaves} == {id(parameter) for parameter in bound_copy.parameters()}
        assert list(bound_copy.state_dict()) == names
    assert [id(parameter) for parameter in hosted.parameters()] == before
    assert all(type(parameter) is nn.Parameter for parameter in hosted.parameters())
    hosted(*fed(name, 1))


def test_two_runs_at_once_have_gradients_of_their_own() -> None:
    hosted = nn.Linear(2, 1, bias=False)
    pool = BoundCopies(hosted)
    with bound(pool, hosted) as (first, first_leaves), bound(pool, hosted) as (second, second_leaves):
        one, two = first(torch.tensor([[1.0, 2.0]])), second(torch.tensor([[3.0, 4.0]]))
    assert torch.autograd.grad(one, first_leaves)[0].tolist() == [[1.0, 2.0]]
    assert torch.autograd.grad(two, second_leaves)[0].tolist() == [[3.0, 4.0]]


def test_a_skin_in_use_is_never_given_to_another() -> None:
    hosted = nn.Linear(2, 1)
    pool = BoundCopies(hosted, keep=2)
    for _ in range(2):
        with bound(pool, hosted) as (a, _), bound(pool, hosted) as (b, _), bound(pool, hosted) as (c, _):
            assert len({id(a), id(b), id(c), id(hosted)}) == 4


def test_a_skin_is_used_again() -> None:
    hosted = nn.Linear(2, 1)
    pool = BoundCopies(hosted)
    with bound(pool, hosted) as (bound_copy, _):
        first = weakref.ref(bound_copy)
        del bound_copy
    with bound(pool, hosted) as (second, _):
        assert second is first()


def test_a_skin_to_which_something_refers_is_not_used_again() -> None:
    hosted = nn.Sequential(nn.Linear(2, 1))
    pool = BoundCopies(hosted)
    with bound(pool, hosted) as (bound_copy, leaves):
        kept = bound_copy[0]
        del bound_copy
    with bound(pool, hosted) as (second, _):
        assert second[0] is not kept
    assert kept.weight is leaves[0], "who refers to it finds the numbers of its own run"


def test_no_more_skins_are_kept_than_asked_for() -> None:
    hosted = nn.Linear(2, 1)
    pool = BoundCopies(hosted, keep=1)
    made = []
    for _ in range(2):
        with ExitStack() as stack:
            modules = [stack.enter_context(bound(pool, hosted))[0] for _ in range(2)]
            made += map(weakref.ref, modules)
            modules.clear()
    gc.collect()
    assert len({id(ref()) for ref in made if ref() is not None}) == 1


def test_the_two_modes_have_skins_of_their_own() -> None:
    hosted = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2))
    pool = BoundCopies(hosted)
    with bound(pool, hosted, training=True) as (training, _), bound(pool, hosted, training=False) as (other, _):
        assert [module.training for module in training.modules()] == [True] * 3
        assert [module.training for module in other.modules()] == [False] * 3
    assert [module.training for module in hosted.modules()] == [True] * 3


def test_a_run_that_changes_its_mode_changes_nothing_for_the_next() -> None:
    hosted = nn.Sequential(nn.Dropout(0.5))
    pool = BoundCopies(hosted)
    with bound(pool, hosted, training=True) as (bound_copy, _):
        bound_copy.eval()
    with bound(pool, hosted, training=True) as (bound_copy, _):
        assert [module.training for module in bound_copy.modules()] == [True, True]
    assert hosted.training


def test_a_train_of_the_modules_own_is_heeded() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.mode = "as made"

        def train(self, mode: bool = True) -> Stubborn:
            super().train(mode)
            self.norm.eval()
            self.mode = "training" if mode else "evaluation"
            return self

    hosted = Stubborn()
    pool = BoundCopies(hosted)
    for _ in range(2):
        with bound(pool, hosted, training=True) as (bound_copy, _):
            assert (bound_copy.training, bound_copy.norm.training, bound_copy.mode) == (True, False, "training")
        with bound(pool, hosted, training=False) as (bound_copy, _):
            assert (bound_copy.training, bound_copy.norm.training, bound_copy.mode) == (False, False, "evaluation")
    assert hosted.mode == "as made"


def test_leaves_are_let_go_of_after_the_run() -> None:
    hosted = born("plain attributes")
    pool = BoundCopies(hosted)
    with bound(pool, hosted) as (bound_copy, leaves):
        bound_copy(*fed("plain attributes", 0))
        refs = list(map(weakref.ref, leaves))
        leaves.clear()
        del bound_copy
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)
