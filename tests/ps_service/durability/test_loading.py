"""Tests that objects that are made again get their state back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn, optim

from ps_service.durability.object_states import set_buffers
from ps_service.durability.restoring import freeze, load
from ps_service.hosting.objects import HostedObject
from ps_service.parameters.locks import ParameterLocks
from tests.ps_service.training.owned import Owner, assert_same_state


def hosted(value: Any) -> HostedObject:
    return HostedObject("ps0", value, ParameterLocks())


def test_a_module_gets_its_parameters_and_buffers() -> None:
    before, after = (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(2))
    before(torch.randn(4, 2))
    load(hosted(after), before.state_dict(), 0)
    torch.testing.assert_close(after.state_dict(), before.state_dict(), rtol=0, atol=0)


def test_a_buffer_of_another_shape_takes_the_place_of_the_one_that_was_made() -> None:
    before, after = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    before.running_mean = torch.ones(5)
    load(hosted(after), copy.deepcopy(before.state_dict()), 0)
    assert after.running_mean is not None and after.running_mean.tolist() == [1.0] * 5


def test_a_buffer_that_was_none_is_none_again() -> None:
    state = nn.BatchNorm1d(2).state_dict()
    state.pop("running_mean")
    made = nn.BatchNorm1d(2)
    load(hosted(made), state, 0)
    assert made.running_mean is None


def test_a_buffer_that_was_made_later_is_on_the_device_of_its_owner() -> None:
    made = nn.Module()
    made.register_buffer("late", None)
    set_buffers(made, {"late": torch.ones(2, dtype=torch.float64)}, torch.device("meta"))
    assert made.late is not None and (made.late.device.type, made.late.dtype) == ("meta", torch.float64)


def test_buffers_that_were_one_tensor_get_values_of_their_own() -> None:
    made = nn.Module()
    made.register_buffer("one", torch.zeros(2))
    made.register_buffer("other", made.one)
    set_buffers(made, {"one": torch.ones(2), "other": torch.full((2,), 2.0)}, torch.device("cpu"))
    assert (made.one.tolist(), made.other.tolist()) == ([1.0, 1.0], [2.0, 2.0])


def test_a_state_of_another_module_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Unexpected key"):
        load(hosted(nn.Linear(2, 2)), nn.Linear(2, 2).state_dict() | {"inner.scale": torch.ones(1)}, 0)


def test_an_optimizer_gets_its_state_and_version() -> None:
    before, after = Owner().optimizer(optim.Adam, lr=0.1), Owner().optimizer(optim.Adam, lr=0.5)
    for group in before.optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    before.optimizer.step()
    load(hosted(after), before.optimizer.state_dict(), 7)
    assert after.version == 7
    assert_same_state(after.optimizer.state_dict(), before.optimizer.state_dict())


def test_state_of_an_optimizer_keeps_its_own_dtype() -> None:
    made = Owner(shapes=[(2,)]).optimizer(optim.SGD, lr=0.1, momentum=0.9)
    state = made.optimizer.state_dict()
    state["state"] = {0: {"momentum_buffer": torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)}}
    load(hosted(made), state, 1)
    (entries,) = made.optimizer.state.values()
    assert (entries["momentum_buffer"].dtype, entries["momentum_buffer"][0].item()) == (torch.float64, 1 / 3)


def test_any_other_object_loads_its_state_itself() -> None:
    class Counter:
        value = 0

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.value = state["value"]

    counter = Counter()
    load(hosted(counter), {"value": 5}, 0)
    assert counter.value == 5


def test_parameters_are_frozen_as_they_were() -> None:
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    freeze(hosted(module), {"weight"})
    assert (module.weight.requires_grad, module.bias.requires_grad) == (False, True)
