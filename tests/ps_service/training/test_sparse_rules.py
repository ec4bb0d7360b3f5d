"""Tests that steps are refused exactly where torch's own optimizers would raise."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import optim

from ps_service.training import sparse_rules
from tests.cases import case

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")

SGD = [
    {"momentum": momentum, "nesterov": nesterov, "weight_decay": decay, "maximize": maximize, **kind}
    for momentum, nesterov, decay, maximize, kind in itertools.product(
        (0.0, 0.9), (False, True), (0.0, 0.1), (False, True), ({}, {"fused": True}, {"foreach": True})
    )
    if momentum or not nesterov
]
ADAGRAD: list[dict[str, Any]] = [{}, {"weight_decay": 0.1}, {"fused": True}, {"foreach": True}, {"maximize": True}]
CASES = [
    *((optim.SGD, options) for options in SGD),
    *((optim.Adagrad, options) for options in ADAGRAD),
    (optim.SparseAdam, {}),
    (optim.SparseAdam, {"maximize": True}),
    *((cls, {}) for cls in (optim.Adam, optim.AdamW, optim.RMSprop, optim.Adamax, optim.NAdam)),
    *((cls, {}) for cls in (optim.ASGD, optim.Adadelta, optim.RAdam, optim.Rprop)),
]


def gradient(kind: str) -> torch.Tensor:
    match kind:
        case "dense":
            return torch.randn(5, 2)
        case "rows":
            return torch.sparse_coo_tensor([[1, 3, 1]], torch.randn(3, 2), (5, 2))
        case "no rows":
            return torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.long), torch.randn(0, 2), (5, 2))
        case "no numbers":
            return torch.sparse_coo_tensor(torch.empty(2, 0, dtype=torch.long), torch.randn(0), (5, 2))
        case _:
            return torch.sparse_coo_tensor([[1, 3], [0, 1]], torch.randn(2), (5, 2))


@pytest.mark.parametrize("cls", {cls: None for cls, _ in CASES}, ids=lambda cls: cls.__name__)
def test_a_step_is_refused_if_and_only_if_torch_raises(cls: Any) -> None:
    for options in [options for each, options in CASES if each is cls]:
        with case(options):
            _check_steps(cls, options)


def _check_steps(cls: Any, options: dict[str, Any]) -> None:
    for kinds in itertools.product(("dense", "rows", "no rows", "numbers", "no numbers"), repeat=2):
        parameter = torch.nn.Parameter(torch.randn(5, 2))
        optimizer = cls([parameter], lr=0.1, **options)
        (group,) = optimizer.param_groups
        for kind in kinds:
            parameter.grad = gradient(kind)
            refused = sparse_rules.refusal(optimizer, group, parameter, parameter.grad)
            if not refused and sparse_rules.can_step_rows(optimizer, group, parameter.grad):
                continue  # Torch's own step is not used for it.
            try:
                optimizer.step()
                raised = ""
            except (RuntimeError, ValueError, NotImplementedError) as error:
                raised = str(error)
            assert bool(refused) == bool(raised), (kinds, kind, refused, raised)
            if raised:
                break


def test_such_steps_are_never_half_done() -> None:
    for cls, options in CASES:
        optimizer = cls([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1, **options)
        assert sparse_rules.never_half_done(optimizer), (cls, options)


def test_other_steps_may_be() -> None:
    class Own(optim.SGD):
        pass

    parameter = torch.nn.Parameter(torch.ones(2, 2))
    assert not sparse_rules.never_half_done(Own([parameter], lr=0.1))
    assert not sparse_rules.never_half_done(optim.Adam([parameter], differentiable=True))
    assert not sparse_rules.never_half_done(optim.LBFGS([parameter]))
