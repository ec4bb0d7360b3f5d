"""Tests that the tensors of a module are found, and that calls that change them take turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ps_service.hosting.counterparts import Counterparts
from ps_service.hosting.histories import Ending, has_open_history
from ps_service.hosting.internals import Internals
from ps_service.parameters.locks import ParameterLocks, WouldBlock

FORWARD = ("forward", True)


class Keeping(nn.Module):
    """A module that keeps tensors in a buffer, a list and an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("mean", torch.zeros(2))
        self.listed = [torch.zeros(3)]
        self.last: Any = None


def internals_of(module: nn.Module) -> Internals:
    """What is known of a module once a copy of it was made."""
    made = Internals(frozenset(map(id, module.parameters())))
    made.learn(Counterparts(module).parts, 1)
    return made


def ids(tensors: list[torch.Tensor]) -> set[int]:
    return set(map(id, tensors))


def ran(
    internals: Internals, code: tuple[str, bool] = FORWARD, restructured: bool = False, write: bool = False
) -> None:
    """Notes a call, which may write to all tensors that are kept."""
    before = internals.found()
    versions = [each._version for each in before.tensors]
    if write:
        for each in before.tensors:
            each.add_(1)
    internals.note_run(code, before, versions, restructured)


@contextmanager
def another_turn(internals: Internals, locks: ParameterLocks) -> Iterator[None]:
    """While the block runs, it is the turn of a call in another thread, and this thread must not wait."""
    begun, over = Event(), Event()

    def call() -> None:
        with internals.turn(locks, FORWARD, nested=False):
            begun.set()
            over.wait(20)

    thread = Thread(target=call)
    thread.start()
    assert begun.wait(20)
    locks.forbid_blocking()
    try:
        yield
    finally:
        locks.allow_blocking()
        over.set()
        thread.join()


# What a module keeps


def test_buffers_and_tensors_behind_attributes_are_kept() -> None:
    module = Keeping()
    found = internals_of(module).found()
    assert ids(found.tensors) == {id(module.mean), id(module.listed[0])}
    assert found.is_all


def test_a_module_with_parameters_alone_keeps_nothing() -> None:
    assert internals_of(nn.Linear(2, 2)).found() == ([], True)


def test_the_kept_tensors_are_the_present_ones() -> None:
    module = Keeping()
    internals = internals_of(module)
    module.listed.append(torch.ones(1))
    module.mean = torch.ones(2)
    assert ids(internals.found().tensors) == {id(module.mean), *map(id, module.listed)}


def test_is_all_is_false_if_the_search_exceeds_its_limit() -> None:
    module = Keeping()
    module.listed = [[number] for number in range(5000)]
    assert not internals_of(module).found().is_all


def test_an_attribute_that_a_run_has_set_is_looked_at_from_then_on() -> None:
    module = Keeping()
    internals = Internals()
    parts = Counterparts(module).parts
    internals.learn(parts, 1)
    module.fresh = torch.ones(4)
    assert id(module.fresh) not in ids(internals.found().tensors)
    internals.note_set(next(part for part in parts if part.holder is module), "fresh", module.fresh)
    assert id(module.fresh) in ids(internals.found().tensors)


def test_all_buffers_are_told_those_of_layers_too() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2), Keeping())
    assert ids(internals_of(module).buffers()) == ids(list(module.buffers()))
    assert internals_of(nn.Linear(1, 1)).buffers() == []


def test_running_statistics_do_not_count_where_layers_take_turns_themselves() -> None:
    layer = nn.BatchNorm1d(2)
    internals = Internals()
    lock = internals.norm_lock(layer)
    assert internals.norm_lock(layer) is lock
    internals.learn(Counterparts(nn.Sequential(layer)).parts, 1)
    assert internals.found().tensors == []
    with internals.quiet():
        assert lock.locked()
    assert not lock.locked()


# Turns


def test_a_call_of_a_module_that_keeps_nothing_is_free() -> None:
    assert internals_of(nn.Linear(2, 2)).is_free(FORWARD)


def test_a_call_is_free_once_it_has_run_and_changed_nothing() -> None:
    internals = internals_of(Keeping())
    assert not internals.is_free(FORWARD)
    ran(internals)
    assert internals.is_free(FORWARD)
    assert not internals.is_free(("forward", False)), "in evaluation it has not run"


def test_once_a_call_has_changed_a_tensor_none_is_free() -> None:
    internals = internals_of(Keeping())
    ran(internals, ("other", True))
    ran(internals, write=True)
    assert internals.changing
    assert not internals.is_free(("other", True))


def test_a_call_that_changes_the_structure_at_first_is_free_once_it_stops() -> None:
    internals = internals_of(nn.Linear(2, 2))
    ran(internals, restructured=True)
    assert not internals.changing and not internals.is_free(FORWARD)
    ran(internals)
    assert internals.is_free(FORWARD)
    ran(internals, restructured=True)
    assert internals.changing


def test_a_turn_waits_for_the_one_before() -> None:
    internals, locks = internals_of(Keeping()), ParameterLocks()
    with another_turn(internals, locks):
        with pytest.raises(WouldBlock), internals.turn(locks, FORWARD, nested=False):
            pass
        with internals.turn(locks, FORWARD, nested=True):
            pass  # it could be the very call that it is made for
    with internals.turn(locks, FORWARD, nested=False):
        pass


def test_a_nested_call_takes_its_turn_where_calls_change_tensors() -> None:
    internals, locks = internals_of(Keeping()), ParameterLocks()
    ran(internals, write=True)
    with another_turn(internals, locks), pytest.raises(WouldBlock), internals.turn(locks, FORWARD, nested=True):
        pass


# Histories


def test_stored_tensors_have_no_history_for_later_runs() -> None:
    module = Keeping()
    module.listed = [module.weight * 2]
    internals = internals_of(module)
    internals.end_histories(known=())
    assert not has_open_history(module.listed[0]) and module.listed[0].tolist() == [2.0]
    assert internals.changing and internals.ends_histories


def test_a_tensor_with_an_earlier_history_keeps_it() -> None:
    module = Keeping()
    module.listed = [kept] = [module.weight * 2]
    internals = internals_of(module)
    internals.end_histories(known={id(kept)})
    assert module.listed[0] is kept
    assert not internals.changing


def test_a_value_without_a_history_is_handed_on_as_it_is() -> None:
    internals, value = Internals(), [torch.ones(1)]
    assert internals.without_history(value, Ending()) is value
    assert not internals.ends_histories
    made = internals.without_history((torch.ones(1, requires_grad=True) * 2,), Ending())
    assert not has_open_history(made[0]) and internals.ends_histories


class Ambiguous:
    """Has no truth value, like an array of several numbers."""

    def __bool__(self) -> bool:
        raise ValueError("the truth value is ambiguous")


@pytest.mark.parametrize("value", [np.zeros(3), Ambiguous()], ids=["array", "object"])
def test_attributes_without_a_truth_value_are_searched_like_others(value: Any) -> None:
    module = Keeping()
    module.last = value
    internals = internals_of(module)
    assert ids(internals.found().tensors) == ids([module.mean, *module.listed])
    assert internals.found().is_all
