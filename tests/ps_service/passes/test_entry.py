"""Tests that tensors enter the graph as intermediate results, and that missing gradients are None."""

from __future__ import annotations

import pytest
import torch

from ps_service.passes.records import GraphEntry


def test_the_numbers_stay_and_the_gradients_come_back() -> None:
    entry = GraphEntry()
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0])
    x, y = entry.enter([a, b])
    assert torch.equal(x, a) and torch.equal(y, b)
    assert x.requires_grad and y.requires_grad
    torch.autograd.grad([(x * x).sum() + 5 * y.sum()], [entry.token])
    first, second = entry.take_gradients()
    assert first is not None and first.tolist() == [2.0, 4.0]
    assert second is not None and second.tolist() == [5.0]


def test_entered_tensors_may_be_written_in_place() -> None:
    entry = GraphEntry()
    (x,) = entry.enter([torch.tensor([1.0, -2.0])])
    x.mul_(3).relu_()
    torch.autograd.grad([x.sum()], [entry.token])
    assert entry.take_gradients()[0].tolist() == [3.0, 0.0]


def test_an_input_that_was_not_used_has_no_gradient() -> None:
    entry = GraphEntry()
    x, _ = entry.enter([torch.ones(2), torch.ones(3)])
    torch.autograd.grad([x.sum()], [entry.token])
    first, second = entry.take_gradients()
    assert first is not None
    assert second is None


def test_gradients_are_taken_once() -> None:
    entry = GraphEntry()
    (x,) = entry.enter([torch.ones(2)])
    torch.autograd.grad([x.sum()], [entry.token], retain_graph=True)
    assert len(entry.take_gradients()) == 1
    assert entry.take_gradients() == ()


def test_a_backward_that_does_not_come_this_way_brings_nothing() -> None:
    entry = GraphEntry()
    leaf = torch.ones(2, requires_grad=True)
    entry.enter([torch.ones(2)])
    torch.autograd.grad([leaf.sum()], [leaf, entry.token], allow_unused=True)
    assert entry.take_gradients() == ()


def test_the_same_pass_again_brings_new_gradients() -> None:
    entry = GraphEntry()
    (x,) = entry.enter([torch.ones(2)])
    for factor in (1.0, 2.0):
        torch.autograd.grad([x.sum()], [entry.token], [torch.tensor(factor)], retain_graph=True)
        assert entry.take_gradients()[0].tolist() == [factor, factor]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_every_dtype_that_can_be_differentiated_enters(dtype: torch.dtype) -> None:
    entry = GraphEntry()
    (x,) = entry.enter([torch.ones(2, dtype=dtype)])
    torch.autograd.grad([x.sum()], [entry.token], [torch.ones((), dtype=dtype)])
    assert entry.take_gradients()[0].dtype == dtype
