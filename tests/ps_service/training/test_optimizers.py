"""Tests that a step equals torch's step and is applied wholly or not at all, also beside other steps."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import optim

from ps_service.training.optimizers import HostedOptimizer
from ps_wire.errors import ContextEndedError, InvalidArgumentError, NonFiniteGradientError
from tests.ps_service.threads import PATIENCE, Worker
from tests.ps_service.training.owned import Owner, assert_same_state, same


@pytest.fixture
def owner() -> Owner:
    return Owner()


def sparse(*values: float) -> torch.Tensor:
    """A gradient of a 4 x 2 parameter, with a row that comes twice."""
    rows = torch.tensor(values).view(-1, 2)
    return torch.sparse_coo_tensor([[0, 2, 0][: len(rows)]], rows, (4, 2), check_invariants=True)


# Steps


@pytest.mark.parametrize("consistent", [True, False])
@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (optim.SGD, {"lr": 0.1}),
        (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        (optim.Adam, {"lr": 0.01}),
        (optim.Adam, {"lr": 0.01, "amsgrad": True, "maximize": True}),
        (optim.AdamW, {}),
        (optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1}),
        (optim.RMSprop, {"momentum": 0.5, "centered": True}),
        (optim.Adadelta, {}),
        (optim.Adamax, {}),
        (optim.NAdam, {}),
        (optim.RAdam, {}),
        (optim.Rprop, {}),
        (optim.ASGD, {}),
        (optim.Adafactor, {}),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
def test_steps_are_those_of_torch(owner: Owner, cls: Any, options: dict[str, Any], consistent: bool) -> None:
    local = Owner().parameters
    reference = cls(local, **options)
    hosted = owner.optimizer(cls, consistent=consistent, **options)
    assert same(owner.numbers, local), "making one changes nothing"
    for step in range(4):
        gradients = owner.gradients(step)
        if step == 2:
            del gradients[1]
        for i, parameter in enumerate(local):
            parameter.grad = gradients.get(i)
        reference.step()
        assert hosted.step(owner.context(gradients, step + 1)) == hosted.version == step + 1
        assert same(owner.numbers, local)
        assert all(parameter.grad is None for parameter in owner.parameters)


@pytest.mark.parametrize(
    ("cls", "options"), [(optim.SGD, {"lr": 0.1}), (optim.Adagrad, {"lr": 0.1}), (optim.SparseAdam, {})], ids=str
)
def test_sparse_gradients_are_applied_as_torch_does(cls: Any, options: dict[str, Any]) -> None:
    owner, local = Owner([(4, 2)]), Owner([(4, 2)]).parameters
    reference, hosted = cls(local, **options), owner.optimizer(cls, **options)
    for step in range(3):
        local[0].grad = sparse(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
        with torch.sparse.check_sparse_tensor_invariants():  # torch warns of Adagrad's own tensors otherwise
            reference.step()
            hosted.step(owner.context({0: sparse(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)}, step + 1))
        assert same(owner.numbers, local)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
def test_a_fused_sgd_takes_rows_too(maximize: bool, lr: Any) -> None:
    shapes = [(4, 2), (3,)]
    owner, local = Owner(shapes), Owner(shapes).parameters
    reference = optim.SGD(local, lr=0.1, maximize=maximize)
    hosted = owner.optimizer(optim.SGD, lr=lr, maximize=maximize, fused=True)
    for step in range(3):
        local[0].grad, local[1].grad = sparse(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), torch.tensor([1.0, 2.0, 3.0])
        with torch.sparse.check_sparse_tensor_invariants():
            reference.step()
            gradients = {0: sparse(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), 1: torch.tensor([1.0, 2.0, 3.0])}
            assert hosted.step(owner.context(gradients, step + 1)) == step + 1
        for mine, theirs in zip(owner.numbers, local, strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=1e-6, atol=1e-6)
        assert all(parameter.grad is None for parameter in owner.parameters)


def test_a_fused_sgd_refuses_rows_where_torch_does(owner: Owner) -> None:
    hosted = owner.optimizer(optim.SGD, lr=0.1, momentum=0.9, fused=True)
    before = owner.numbers
    with pytest.raises(InvalidArgumentError, match="it takes none with fused=True"):
        hosted.step(owner.context({0: torch.ones(2, 3), 2: sparse(1.0, 2.0)}))
    assert same(owner.numbers, before)


def test_groups_have_their_own_options(owner: Owner) -> None:
    hosted = owner.optimizer(optim.SGD, [([0], {"lr": 1.0}), ([1, 2], {})], lr=0.5)
    before = owner.numbers
    hosted.step(owner.context({i: torch.ones_like(p) for i, p in enumerate(owner.parameters)}))
    for number, rate, now in zip(before, (1.0, 0.5, 0.5), owner.numbers, strict=True):
        torch.testing.assert_close(now, number - rate)


def test_a_pass_without_gradients_is_no_step(owner: Owner) -> None:
    hosted = owner.optimizer(optim.SGD, [([0], {})], lr=0.1, weight_decay=0.5)
    before = owner.numbers
    assert hosted.step(owner.context({})) == 0
    assert hosted.step(owner.context({1: torch.ones(3)})) == 0, "a parameter that is not covered"
    assert same(owner.numbers, before)


def test_a_context_that_ended_is_not_applied(owner: Owner) -> None:
    hosted = owner.optimizer(optim.SGD, lr=0.1)
    context = owner.context(owner.gradients(0))
    context.end()
    with pytest.raises(ContextEndedError):
        hosted.step(context)
    assert hosted.version == 0


def test_steps_of_many_trainers_are_applied_one_after_the_other(owner: Owner) -> None:
    hosted = owner.optimizer(optim.SGD, lr=1.0)
    before, barrier = owner.numbers, threading.Barrier(4)

    def step(number: int) -> list[int]:
        barrier.wait(PATIENCE)
        ones = {i: torch.ones_like(p) for i, p in enumerate(owner.parameters)}
        return [hosted.step(owner.context(ones, number)) for _ in range(25)]

    versions = [worker.result() for worker in [Worker(lambda n=number: step(n)) for number in range(1, 5)]]
    assert sorted(version for each in versions for version in each) == list(range(1, 101))
    for number, now in zip(before, owner.numbers, strict=True):
        torch.testing.assert_close(now, number - 100.0)


@pytest.mark.parametrize("consistent", [True, False])
def test_optimizers_that_cover_the_same_parameter_do_not_mix_their_gradients(owner: Owner, consistent: bool) -> None:
    one, other = (owner.optimizer(optim.SGD, [([0], {})], consistent=consistent, lr=1.0) for _ in range(2))
    before, barrier = owner.numbers[0], threading.Barrier(2)

    def step(hosted: HostedOptimizer, gradient: float) -> None:
        context = owner.context({0: torch.full((2, 3), gradient)})
        for _ in range(100):
            barrier.wait(PATIENCE)
            hosted.step(context)

    for worker in [Worker(lambda: step(one, 1.0)), Worker(lambda: step(other, 10.0))]:
        worker.result()
    torch.testing.assert_close(owner.numbers[0], before - 1100.0)


@pytest.mark.parametrize("consistent", [True, False])
def test_only_inconsistent_steps_reach_a_pass_that_is_open(owner: Owner, consistent: bool) -> None:
    hosted = owner.optimizer(optim.SGD, consistent=consistent, lr=1.0)
    with owner.parameter_locks.reading(owner.parameters, [each.parameter_state for each in owner.covered]) as reading:
        before = [leaf.detach().clone() for leaf in reading.leaves]
        hosted.step(owner.context(owner.gradients(0)))
        unchanged = same([leaf.detach() for leaf in reading.leaves], before)
    assert unchanged is consistent


# All or nothing


class Stumbles(optim.Optimizer):
    """Applies half of a step, and then raises."""

    def __init__(self, params: Any, lr: float = 1.0) -> None:
        super().__init__(params, {"lr": lr})
        self.stumble = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(parameters):
            if self.stumble and number == 1:
                raise ZeroDivisionError
            if parameter.grad is not None:
                state = self.state[parameter]
                state.setdefault("sum", torch.zeros_like(parameter)).add_(parameter.grad)
                state["steps"] = state.get("steps", 0) + 1
                parameter.data -= state["sum"]


@pytest.mark.parametrize("consistent", [True, False])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_step_that_raises_halfway_leaves_no_trace(owner: Owner, consistent: bool, steps_before: int) -> None:
    hosted = owner.optimizer(Stumbles, consistent=consistent)
    for step in range(steps_before):
        hosted.step(owner.context(owner.gradients(step)))
    before, state = owner.numbers, hosted.state_dict()
    hosted.optimizer.stumble = True
    with pytest.raises(ZeroDivisionError):
        hosted.step(owner.context(owner.gradients(7)))
    assert same(owner.numbers, before)
    assert_same_state(hosted.state_dict(), state)
    assert hosted.version == steps_before
    assert all(parameter.grad is None for parameter in owner.parameters)
    hosted.optimizer.stumble = False
    assert hosted.step(owner.context(owner.gradients(7))) == steps_before + 1


@pytest.mark.parametrize("cls", [optim.Adam, optim.RMSprop, optim.AdamW, optim.Adamax])
def test_a_sparse_gradient_for_an_optimizer_that_takes_none_is_refused(owner: Owner, cls: Any) -> None:
    hosted, before = owner.optimizer(cls), owner.numbers
    context = owner.context({0: torch.ones(2, 3), 2: sparse(1.0, 2.0)})
    with pytest.raises(
        InvalidArgumentError, match=r"cannot take the sparse gradient of 'p2': it takes none; use SGD, Adagrad"
    ):
        hosted.step(context)
    assert same(owner.numbers, before)
    assert not hosted.state_dict()["state"]


def test_sparse_and_dense_gradients_that_torch_cannot_mix_leave_no_trace(owner: Owner) -> None:
    hosted, before = owner.optimizer(optim.SGD, lr=0.1, weight_decay=0.1), owner.numbers
    with pytest.raises(InvalidArgumentError, match="the sparse gradient of 'p2': it takes none with weight_decay"):
        hosted.step(owner.context({0: torch.ones(2, 3), 2: sparse(1.0, 2.0)}))
    assert same(owner.numbers, before)
    assert hosted.version == 0


def test_a_momentum_of_many_steps_over_few_rows_does_not_grow_for_ever(owner: Owner) -> None:
    hosted = owner.optimizer(optim.SGD, [([2], {})], lr=0.1, momentum=0.9)
    local = torch.nn.Parameter(owner.numbers[2].clone())
    alone = optim.SGD([local], lr=0.1, momentum=0.9)
    for step in range(50):
        gradient = sparse(1.0, float(step))
        hosted.step(owner.context({2: gradient}))
        local.grad = gradient
        alone.step()
    held = hosted.optimizer.state[owner.parameters[2]]["momentum_buffer"]
    assert held._nnz() <= 2 * local.shape[0] + gradient._nnz()
    torch.testing.assert_close(owner.parameters[2].detach(), local.detach())


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_steps_of_torchs_optimizers_copy_nothing(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a copy was made")

    monkeypatch.setattr("ps_service.training.optimizers.StepUndo", refuse)
    for cls, options in (
        (optim.SGD, {"momentum": 0.9}),
        (optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
        (optim.SGD, {"fused": True}),
        (optim.Adagrad, {}),
        (optim.SparseAdam, {}),
    ):
        hosted = owner.optimizer(cls, [([2], {})], lr=0.1, **options)
        for step in range(3):
            assert hosted.step(owner.context({2: sparse(1.0, 2.0)})) == step + 1
    for cls in (optim.Adam, optim.RMSprop, optim.ASGD, optim.Adadelta, optim.RAdam, optim.Rprop):
        hosted = owner.optimizer(cls, lr=0.1)
        assert hosted.step(owner.context(owner.gradients(0))) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("which", ["dense", "sparse"])
def test_gradients_that_are_not_finite_are_refused_when_asked_to(owner: Owner, bad: float, which: str) -> None:
    hosted, before = owner.optimizer(optim.SGD, refuses_non_finite=True, lr=0.1), owner.numbers
    gradients = owner.gradients(0)
    gradients[2] = torch.full((4, 2), bad) if which == "dense" else sparse(1.0, bad)
    with pytest.raises(
        NonFiniteGradientError, match="'p2' on owner 'ps0' holds NaN or infinity; its optimizer has applied nothing"
    ):
        hosted.step(owner.context(gradients))
    assert same(owner.numbers, before)
    assert hosted.version == 0
    assert hosted.step(owner.context(owner.gradients(0))) == 1


def test_gradients_that_are_not_finite_are_applied_otherwise(owner: Owner) -> None:
    hosted = owner.optimizer(optim.SGD, lr=0.1)
    assert hosted.step(owner.context({1: torch.full((3,), float("nan"))})) == 1
    assert owner.parameters[1].isnan().all()


# Options


def test_options_change_in_one_group_or_in_all(owner: Owner) -> None:
    hosted = owner.optimizer(optim.SGD, [([0], {}), ([1, 2], {"lr": 3.0})], lr=0.5)
    hosted.set_options(1, {"lr": 0.25, "momentum": 0.5})
    assert [(g["lr"], g["momentum"]) for g in hosted.optimizer.param_groups] == [(0.5, 0), (0.25, 0.5)]
    hosted.set_options(None, {"lr": 1.0})
    assert [(g["lr"], g["momentum"]) for g in hosted.optimizer.param_groups] == [(1.0, 0), (1.0, 0.5)]


@pytest.mark.parametrize(
    ("group", "options"),
    [(2, {"lr": 1.0}), (0, {"rate": 1.0}), (None, {"params": []}), (None, {"lr": "fast"}), (1, {"lr": 1.0, "x": 1})],
    ids=str,
)
def test_options_that_do_not_fit_change_nothing(owner: Owner, group: int | None, options: dict[str, Any]) -> None:
    hosted = owner.optimizer(optim.SGD, [([0], {}), ([1, 2], {})], lr=0.5)
    with pytest.raises(InvalidArgumentError):
        hosted.set_options(group, options)
    assert [group["lr"] for group in hosted.optimizer.param_groups] == [0.5, 0.5]
    assert hosted.step(owner.context(owner.gradients(0))) == 1
