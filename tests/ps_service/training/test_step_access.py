"""Tests that a step takes unused parameters at once, and otherwise waits or copies."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from ps_service.parameters.locks import ParameterLocks, WouldBlock
from ps_service.training.step_access import StepAccess
from tests.ps_service.threads import Watched, Worker, in_a_hurry


class Some:
    """Two parameters, and accesses to them."""

    def __init__(self) -> None:
        self.locks = ParameterLocks()
        self.parameters = [Parameter(torch.ones(2)) for _ in range(2)]
        self.states = [self.locks.state(parameter) for parameter in self.parameters]

    def access(self, consistent: bool = True) -> StepAccess:
        return StepAccess(self.locks, self.parameters, self.states, consistent)

    @property
    def flags(self) -> list[tuple[bool, bool, bool]]:
        return [(state.stepped, state.claimed, state.writing) for state in self.states]


@pytest.mark.parametrize("consistent", [True, False])
def test_parameters_that_nothing_uses_are_written_in_place(consistent: bool) -> None:
    some = Some()
    addresses = [parameter.data_ptr() for parameter in some.parameters]
    with some.access(consistent):
        assert some.flags == [(True, consistent, consistent)] * 2
    assert some.flags == [(False, False, False)] * 2
    assert [parameter.data_ptr() for parameter in some.parameters] == addresses
    assert [state.changes for state in some.states] == [1, 1]


@pytest.mark.parametrize("saved", [True, False])
def test_a_parameter_that_a_pass_reads_or_has_saved_is_moved(saved: bool) -> None:
    some = Some()
    pin = some.states[1].pin
    reading = some.locks.reading(some.parameters, some.states)
    kept = [pin.token] if saved else []
    assert pin.saved == len(kept)
    if not saved:
        reading.__enter__()
    addresses = [parameter.data_ptr() for parameter in some.parameters]
    with some.access():
        assert some.flags == [(True, True, True)] * 2
        moved = [parameter.data_ptr() != address for parameter, address in zip(some.parameters, addresses, strict=True)]
        assert moved == [not saved, True]
    assert some.flags == [(False, False, False)] * 2
    assert [state.changes for state in some.states] == [1, 1]


def test_an_inconsistent_step_writes_during_reads() -> None:
    some = Some()
    addresses = [parameter.data_ptr() for parameter in some.parameters]
    with some.locks.reading(some.parameters, some.states), some.access(consistent=False):
        assert [parameter.data_ptr() for parameter in some.parameters] == addresses


def test_steps_of_the_same_parameters_follow_each_other() -> None:
    some = Some()
    some.locks.changed = watched = Watched(some.locks.lock)

    def step() -> list[tuple[bool, bool, bool]]:
        with some.access():
            return some.flags

    with some.access():
        second = Worker(step)
        watched.seen()
    assert second.result() == [(True, True, True)] * 2
    assert [state.changes for state in some.states] == [2, 2]


def test_a_thread_that_must_not_wait_changes_nothing() -> None:
    some = Some()

    def step() -> None:
        with in_a_hurry(some.locks), some.access():
            raise AssertionError("it has taken what is in use")

    with some.access():
        with pytest.raises(WouldBlock):
            Worker(step).result()
        assert some.flags == [(True, True, True)] * 2
    assert [state.changes for state in some.states] == [1, 1]


@pytest.mark.parametrize("read", [True, False])
def test_a_step_that_raises_gives_the_parameters_back(read: bool) -> None:
    some = Some()
    reading = some.locks.reading(some.parameters, some.states)
    if read:
        reading.__enter__()
    with pytest.raises(ZeroDivisionError), some.access():
        raise ZeroDivisionError
    assert some.flags == [(False, False, False)] * 2
