"""Tests the staleness of steps, and the names under which they are counted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import optim
from torch.nn import Parameter

from ps_service.parameters.state import ParameterState
from ps_service.passes.staleness import LONGEST_NAME, MOST_NAMES, OTHERS, FirstReadings, StepCounters
from ps_wire.errors import NonFiniteGradientError
from tests.ps_service.threads import Worker
from tests.ps_service.training.owned import Owner


def parameters(*steps: int) -> tuple[list[Parameter], list[ParameterState]]:
    """Parameters that have had so many steps."""
    parameter_states = [ParameterState() for _ in steps]
    for parameter_state, count in zip(parameter_states, steps, strict=True):
        parameter_state.steps = count
    return [Parameter(torch.zeros(1)) for _ in steps], parameter_states


def note(readings: FirstReadings, parameters: Sequence[Parameter], steps: int) -> None:
    """Notes that parameters had had so many steps when they were read."""
    readings.note(parameters, [steps] * len(parameters))


def test_staleness_counts_steps_of_others_since_the_first_read() -> None:
    readings, ([weight], [parameter_state]) = FirstReadings(), parameters(7)
    note(readings, [weight], 3)
    note(readings, [weight], 6)
    assert readings.stepped([weight], [parameter_state]) == 4


def test_calls_may_be_noted_in_another_order_than_they_read() -> None:
    readings, ([weight], [parameter_state]) = FirstReadings(), parameters(7)
    note(readings, [weight], 6)
    note(readings, [weight], 3)
    assert readings.stepped([weight], [parameter_state]) == 4


def test_the_most_stale_parameter_counts() -> None:
    readings, (weights, parameter_states) = FirstReadings(), parameters(2, 9, 5)
    note(readings, weights, 2)
    assert readings.stepped(weights, parameter_states) == 7
    assert readings.stepped([], []) is None


def test_a_step_without_reads_has_no_staleness() -> None:
    readings, (weights, parameter_states) = FirstReadings(), parameters(2, 9)
    assert readings.stepped(weights, parameter_states) is None
    note(readings, weights[:1], 2)
    assert readings.stepped(weights, parameter_states) == 0


def test_its_own_steps_do_not_make_a_pass_stale() -> None:
    readings, ([weight], [parameter_state]) = FirstReadings(), parameters(5)
    note(readings, [weight], 5)
    for _ in range(3):
        assert readings.stepped([weight], [parameter_state]) == 0
        parameter_state.steps += 1
    parameter_state.steps += 2  # those of others
    assert readings.stepped([weight], [parameter_state]) == 2


def test_a_step_counts_for_each_parameter_that_it_writes_to() -> None:
    owner = Owner()
    optimizer = owner.optimizer(optim.SGD, lr=0.1)
    optimizer.step(owner.context({0: torch.ones(2, 3), 2: torch.ones(4, 2)}))
    assert [each.parameter_state.steps for each in owner.covered] == [1, 0, 1]
    optimizer.step(owner.context({}))
    assert [each.parameter_state.steps for each in owner.covered] == [1, 0, 1], "there was nothing to step"
    counted = optimizer.counter.snapshot()
    assert (counted.steps, counted.staleness.count) == (1, 0), "no call has read the parameters"


def test_a_step_that_is_refused_or_raises_is_none() -> None:
    class Broken(optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            raise RuntimeError("on purpose")

    owner = Owner()
    refusing = owner.optimizer(optim.SGD, refuses_non_finite=True, lr=0.1)
    with pytest.raises(NonFiniteGradientError):
        refusing.step(owner.context({0: torch.full((2, 3), torch.nan)}))
    broken = owner.optimizer(Broken, lr=0.1)
    with pytest.raises(RuntimeError, match="on purpose"):
        broken.step(owner.context({0: torch.ones(2, 3)}))
    assert [each.parameter_state.steps for each in owner.covered] == [0, 0, 0]
    assert refusing.counter.snapshot().steps == broken.counter.snapshot().steps == 0


def test_optimizers_are_counted_by_name() -> None:
    counters = StepCounters()
    counters.of("a").count(0)
    counters.of("a").count(3)
    counters.of("b").count(None)
    told = counters.snapshot()
    assert {name: count.steps for name, count in told.items()} == {OTHERS: 0, "a": 2, "b": 1}
    assert (told["a"].staleness.count, told["a"].staleness.sum, told["b"].staleness.count) == (2, 3, 0)


def test_the_number_of_names_has_a_bound() -> None:
    counters = StepCounters()
    for number in range(MOST_NAMES + 10):
        counters.of(f"optimizer{number}").count(0)
    for name in ("", "x" * (LONGEST_NAME + 1), OTHERS):
        counters.of(name).count(0)
    counters.of("optimizer0").count(0)
    told = counters.snapshot()
    assert len(told) == MOST_NAMES + 1
    assert (told["optimizer0"].steps, told[f"optimizer{MOST_NAMES - 1}"].steps, told[OTHERS].steps) == (2, 1, 13)
    assert counters.has("optimizer0") and not counters.has(OTHERS) and not counters.has(f"optimizer{MOST_NAMES}")


def test_no_step_is_lost_between_threads() -> None:
    counters = StepCounters()

    def count() -> None:
        for _ in range(500):
            counters.of("net").count(1)

    for worker in [Worker(count) for _ in range(4)]:
        worker.result()
    told = counters.snapshot()["net"]
    assert (told.steps, told.staleness.count, told.staleness.sum) == (2000, 2000, 2000)
