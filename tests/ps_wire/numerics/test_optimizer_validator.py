"""Tests that options and states that an optimizer cannot step with are refused before a step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn, optim

from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.optimizer_validator import OptimizerValidator, is_torchs
from tests.cases import case

CLASSES = [
    cls
    for cls in vars(optim).values()
    if isinstance(cls, type) and issubclass(cls, optim.Optimizer) and cls not in (optim.Optimizer, optim.LBFGS)
]


class Own(optim.Optimizer):
    """Not torch's, and particular about its parameters."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        assert all(parameter.numel() > 1 for group in self.param_groups for parameter in group["params"])


def make(cls: type[optim.Optimizer], **options: Any) -> tuple[optim.Optimizer, OptimizerValidator]:
    """An optimizer that has made a step."""
    parameter = nn.Parameter(torch.ones(2, 3))
    gradient = torch.ones(2, 3)
    parameter.grad = gradient.to_sparse() if cls is optim.SparseAdam else gradient
    optimizer = cls([parameter], **options)
    validator = OptimizerValidator(optimizer, options)
    if cls is not Own:
        optimizer.step()
    return optimizer, validator


def test_every_optimizer_passes_with_its_own_options() -> None:
    for cls in (*CLASSES, Own):
        optimizer, validator = make(cls)
        before = copy.deepcopy(optimizer.state_dict())
        with case(cls.__name__):
            validator.check_options(optimizer.param_groups, {"lr": 0.5})
            validator.check_state(optimizer.state_dict())
            assert str(optimizer.state_dict()) == str(before)


@pytest.mark.parametrize("mixed", [True, False], ids=["first", "only"])
def test_parameters_of_integers_are_passed_over(mixed: bool) -> None:
    for cls in CLASSES:
        with case(cls.__name__):
            _check_integers(cls, mixed)


def _check_integers(cls: type[optim.Optimizer], mixed: bool) -> None:
    parameters = [nn.Parameter(torch.ones(2, 3, dtype=torch.long), requires_grad=False)]
    if mixed:
        parameters.append(nn.Parameter(torch.ones(2, 3)))
        gradient = torch.ones(2, 3)
        parameters[1].grad = gradient.to_sparse() if cls is optim.SparseAdam else gradient
    optimizer = cls(parameters)
    validator = OptimizerValidator(optimizer, {})
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    validator.check_options(optimizer.param_groups, {"lr": 0.5})
    validator.check_state(optimizer.state_dict())
    assert str(optimizer.state_dict()) == str(before)
    assert torch.equal(parameters[0], torch.ones(2, 3, dtype=torch.long))


def test_an_optimizer_that_needs_more_than_gradients_is_refused() -> None:
    parameter = nn.Parameter(torch.ones(2))
    with pytest.raises(InvalidArgumentError, match=r"LBFGS cannot make a step.*closure"):
        OptimizerValidator(optim.LBFGS([parameter]), {})


def test_a_learning_rate_that_is_no_number_is_refused() -> None:
    for cls in CLASSES:
        optimizer, validator = make(cls)
        refused = f"{cls.__name__} cannot make a step with these options"
        with case(cls.__name__), pytest.raises(InvalidArgumentError, match=refused):
            validator.check_options(optimizer.param_groups, {"lr": "fast"})


def test_options_fixed_by_the_constructor_are_tried_too() -> None:
    with pytest.raises(InvalidArgumentError, match="leaf"):
        make(optim.Adam, differentiable=True)


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"state": {}, "param_groups": {}},
        {"state": {}, "param_groups": [0]},
        {"state": {}, "param_groups": [{"params": 0}]},
        {"state": {}, "param_groups": [{"params": [[0]]}]},
        {"state": {}, "param_groups": [{"params": []}]},
    ],
    ids=str,
)
def test_an_invalid_state_is_refused(state: Any) -> None:
    _, validator = make(optim.Adam)
    with pytest.raises(InvalidArgumentError):
        validator.check_state(state)


def test_a_state_that_an_optimizer_makes_beforehand_may_not_be_missing() -> None:
    optimizer, validator = make(optim.Adagrad)
    with pytest.raises(InvalidArgumentError, match="parameter 0 is missing"):
        validator.check_state({**optimizer.state_dict(), "state": {}})
    optimizer, validator = make(optim.Adam)
    validator.check_state({**optimizer.state_dict(), "state": {}})


def test_optimizers_of_torch_are_told_from_others() -> None:
    assert all(is_torchs(make(cls)[0]) for cls in CLASSES)
    assert not is_torchs(make(Own)[0])
