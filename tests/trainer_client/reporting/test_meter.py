"""Tests the numbers of a training loop."""

from __future__ import annotations

import pytest
import torch

import trainer_client as tc
from ps_wire.v1.operations_pb2 import StepReply
from tests.ps_service.clock import Clock
from trainer_client.reporting.progress import LATEST, Meter


def stepped(staleness: int = 0, dropped: str = "") -> tc.Stepped:
    return tc.Stepped({"ps0": 1}, StepReply(version=1, staleness=staleness, counted=int(not dropped), dropped=dropped))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> Meter:
    return Meter(clock)


def test_a_meter_without_steps_has_nothing_to_tell(meter: Meter) -> None:
    assert (str(meter), meter.steps_per_second) == ("", 0.0)


def test_each_step_has_its_numbers(meter: Meter, clock: Clock) -> None:
    first = meter.step(stepped(), {"loss": 2.0})
    assert (first.step, first.steps_per_second, first.staleness, first.dropped, first.values) == (
        1,
        0.0,
        0,
        0,
        {"loss": 2.0},
    )
    clock.now += 0.25
    second = meter.step(stepped(3, "stale"), {"loss": 1.0})
    assert (second.step, second.steps_per_second, second.staleness, second.dropped) == (2, 4.0, 3, 1)
    clock.now += 0.25
    skipped = meter.step(None, {})
    assert (skipped.step, skipped.staleness, skipped.dropped) == (3, None, 1)
    assert str(meter) == "4 steps/s, loss 1.5, staleness 1.5 (means of 2 steps), 1 dropped"


def test_means_are_those_of_the_latest_steps(meter: Meter, clock: Clock) -> None:
    for number in range(100 + LATEST):
        meter.step(stepped(), {"loss": 1000.0 if number < 100 else 1.0})
        clock.now += 1
    assert str(meter) == f"1 steps/s, loss 1, staleness 0 (means of {LATEST} steps)"


def test_the_graph_of_a_loss_is_not_kept(meter: Meter) -> None:
    weight = torch.ones(3, requires_grad=True)
    numbers = meter.step(stepped(), {"loss": (weight * 2).sum()})
    assert isinstance(numbers.values["loss"], torch.Tensor) and numbers.values["loss"].grad_fn is None
    assert "loss 6" in str(meter)
