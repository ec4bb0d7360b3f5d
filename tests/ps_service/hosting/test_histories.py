"""Tests that later runs find the values of stored tensors, and that gradients do not propagate through them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ps_service.hosting.histories import ended, ending, has_open_history, reaches_ended
from ps_wire.errors import InvalidArgumentError


def computed(*values: float) -> torch.Tensor:
    """A tensor with a history."""
    return torch.tensor(values, requires_grad=True) * 2


def test_only_computed_tensors_have_a_history() -> None:
    assert has_open_history(computed(1.0))
    assert not has_open_history(torch.ones(1, requires_grad=True))
    assert not has_open_history(computed(1.0).detach())
    assert not has_open_history(ended(computed(1.0)))


def test_an_ended_tensor_is_the_same_memory_and_counts_the_same_writes() -> None:
    tensor = computed(1.0, 2.0)
    made = ended(tensor)
    assert made.tolist() == [2.0, 4.0]
    assert made.data_ptr() == tensor.data_ptr()
    assert made._version == tensor._version
    with torch.no_grad():
        made.add_(1.0)
    assert tensor.tolist() == [3.0, 5.0]
    assert made._version == tensor._version
    assert made.requires_grad


def test_an_ended_tensor_may_be_written_to_where_gradients_are_on() -> None:
    made = ended(computed(1.0))
    made += 1.0
    assert made.tolist() == [3.0]


@pytest.mark.parametrize("grad_mode", [True, False])
def test_gradients_do_not_go_back_through_an_ended_tensor(grad_mode: bool) -> None:
    leaf = torch.ones(1, requires_grad=True)
    with torch.set_grad_enabled(grad_mode):
        made = ended(computed(1.0))
    with pytest.raises(InvalidArgumentError, match=r"an earlier call has left behind.*Use its detach\(\)"):
        (made * leaf).sum().backward()
    leaf.grad = None
    (made.detach() * leaf).sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [2.0]


def test_reaches_ended_finds_an_ended_tensor_in_the_graph() -> None:
    made, leaf = ended(computed(1.0)), torch.ones(1, requires_grad=True)
    assert reaches_ended([made * leaf])
    assert not reaches_ended([made.detach() * leaf])


# Ending those that a run leaves behind


def test_tensors_with_a_history_are_replaced_wherever_they_stand() -> None:
    tensor, leaf, plain = computed(1.0), torch.ones(1, requires_grad=True), torch.ones(1)
    value = {"list": [tensor, leaf], "tuple": (plain, tensor), "number": 3}
    made = ending().of(value)
    assert made is value, "what can be written to stays the same object"
    alias = made["list"][0]
    assert alias is not tensor and not has_open_history(alias) and alias.tolist() == [2.0]
    assert made["tuple"][1] is alias, "the same one wherever the same tensor stands"
    assert made["list"][1] is leaf and made["tuple"][0] is plain and made["number"] == 3


def test_a_tensor_itself_is_replaced() -> None:
    tensor = computed(1.0)
    assert not has_open_history(ending().of(tensor))


def test_a_tensor_with_an_earlier_history_stays() -> None:
    known, new = computed(1.0), computed(2.0)
    value = [known, new]
    ending(known={id(known)}).of(value)
    assert value[0] is known and value[1] is not new


def test_where_there_is_no_history_nothing_is_replaced() -> None:
    value = [torch.ones(1), (torch.ones(1, requires_grad=True),)]
    before = list(value)
    assert ending().of(value) is value
    assert all(one is other for one, other in zip(value, before, strict=True))


def test_modules_are_not_looked_into() -> None:
    module = nn.Linear(1, 1)
    module.last = tensor = computed(1.0)
    ending().of([module])
    assert module.last is tensor
