"""The local part of an optimizer works on the gradients of a context, and leaves `.grad` alone."""

from __future__ import annotations

import pytest
import torch
from torch import optim

from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError
from ps_wire.runtime.latency import Latency
from tests.trainer_client.scripted_passes import new_context
from trainer_client.contexts.context import Context
from trainer_client.graph.leaves import reservations
from trainer_client.optimizers.parts import LocalOptimizer


async def context_with(*gradients: list[float]) -> tuple[Context, list[torch.Tensor]]:
    """A context in which parameters that are zero have these gradients."""
    context = new_context()
    parameters = [torch.zeros(len(each), requires_grad=True) for each in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        await context.backward(parameter, torch.tensor(gradient))
    return context, parameters


def sgd(parameters: list[torch.Tensor], refuse_non_finite: bool = False) -> LocalOptimizer:
    return LocalOptimizer(optim.SGD, [{"params": parameters}], {"lr": 0.5}, refuse_non_finite)


async def test_a_step_applies_the_gradients_of_the_context() -> None:
    context, parameters = await context_with([1.0, 2.0], [4.0])
    parameters[0].grad = torch.full((2,), 100.0)
    without = torch.zeros(1, requires_grad=True)
    sgd([*parameters, without]).step(context)
    assert [each.tolist() for each in (*parameters, without)] == [[-0.5, -1.0], [-2.0], [0.0]]
    assert parameters[0].grad.tolist() == [100.0, 100.0]
    assert parameters[1].grad is None


async def test_a_step_that_was_seen_to_be_short_is_made_at_once() -> None:
    context, parameters = await context_with([1.0, 2.0])
    parameters[0].grad = torch.full((2,), 100.0)
    part = short_sgd(parameters)
    assert part.step_now(context)
    assert parameters[0].tolist() == [-0.5, -1.0]
    assert parameters[0].grad.tolist() == [100.0, 100.0]


async def test_a_step_that_was_not_measured_or_was_long_is_not_made_at_once() -> None:
    context, parameters = await context_with([1.0])
    part = sgd(parameters)
    assert not part.step_now(context)
    part._latency.note(1.0)
    assert not part.step_now(context)
    assert parameters[0].tolist() == [0.0]


async def test_a_step_that_may_wait_is_not_made_at_once() -> None:
    context, parameters = await context_with([1.0])
    for hook in ("register_step_pre_hook", "register_step_post_hook"):
        part = short_sgd(parameters)
        getattr(part.optimizer, hook)(lambda *_: None)
        assert not part.step_now(context)
    part = LocalOptimizer(Own, [{"params": parameters}], {"lr": 0.5}, False)
    part._latency.note(0.0)
    assert not part.step_now(context)
    part = short_sgd(parameters)
    with reservations.of(parameters):
        assert not part.step_now(context)
    assert parameters[0].tolist() == [0.0]
    assert part.step_now(context)
    # What a step that was made has reserved is free again, however long it took.
    part._latency = Latency()
    part._latency.note(0.0)
    assert part.step_now(context)


async def test_blocks_of_torch_that_are_open_do_not_reach_a_step() -> None:
    context, parameters = await context_with([1.0])
    part = short_sgd(parameters)
    with torch.inference_mode():
        assert not part.step_now(context)
    with torch.autocast("cpu"):
        assert not part.step_now(context)
    assert part.step_now(context)


class Own(optim.SGD):
    """Not one of torch's own classes."""


def short_sgd(parameters: list[torch.Tensor]) -> LocalOptimizer:
    part = sgd(parameters)
    part._latency.note(0.0)
    return part


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_gradients_that_are_not_finite_are_refused_where_that_is_wanted(value: float) -> None:
    context, parameters = await context_with([1.0, value])
    sgd(parameters).check(context)
    with pytest.raises(NonFiniteGradientError):
        sgd(parameters, refuse_non_finite=True).check(context)


async def test_unscaling_multiplies_gradients_and_reports_its_result() -> None:
    context, parameters = await context_with([1.0, 2.0])
    assert sgd(parameters).unscale(context, 0.5) == (True, False)
    gradient = context.gradient(parameters[0])
    assert gradient is not None and gradient.tolist() == [0.5, 1.0]
    assert sgd([torch.zeros(1, requires_grad=True)]).unscale(context, 0.5) == (False, False)


async def test_unscaling_finds_infinity() -> None:
    context, parameters = await context_with([1.0], [float("inf")])
    assert sgd(parameters).unscale(context, 0.5) == (True, True)


async def test_gradients_of_half_precision_are_not_unscaled() -> None:
    context, half = new_context(), torch.zeros(1, dtype=torch.float16, requires_grad=True)
    await context.backward(half, torch.ones(1, dtype=torch.float16))
    with pytest.raises(InvalidArgumentError, match="float16"):
        sgd([half]).unscale(context, 0.5)


def test_options_that_the_class_refuses_are_told() -> None:
    with pytest.raises(InvalidArgumentError, match="SGD refuses its arguments"):
        LocalOptimizer(optim.SGD, [{"params": [torch.zeros(1)]}], {"lr": -1.0}, False)


async def test_a_state_is_a_copy() -> None:
    context, parameters = await context_with([1.0])
    part = LocalOptimizer(optim.SGD, [{"params": parameters}], {"lr": 0.5, "momentum": 0.9}, False)
    part.step(context)
    state = part.state_dict()
    part.step(context)
    assert state["state"][0]["momentum_buffer"].tolist() == [1.0]
    part.check_state(state)
    part.load_state_dict(state)
    part.step(context)
    assert state["state"][0]["momentum_buffer"].tolist() == [1.0]
