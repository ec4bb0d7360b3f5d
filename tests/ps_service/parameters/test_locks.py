"""A consistent step copies what open passes need, waits for what is large, and is seen whole or not at all."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from ps_service.hosting.objects import HostedObject
from ps_service.parameters import locks
from ps_service.parameters.locks import COPY_AT_MOST, ParameterLocks
from tests.ps_service.parameters.watch import LARGE, Watch, sum_of_leaves
from tests.ps_service.threads import PATIENCE, Worker


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps wait for the readers of large parameters as long as those take."""
    monkeypatch.setattr(locks, "COPY_SECONDS_PER_BYTE", 1.0)
    monkeypatch.setattr(locks, "LONGEST_WAIT_SECONDS", PATIENCE)


def test_a_parameter_has_one_cell_however_many_objects_share_it() -> None:
    parameter_locks = ParameterLocks()
    parameter = Parameter(torch.zeros(2))
    assert parameter_locks.state(parameter) is parameter_locks.state(parameter)
    assert parameter_locks.state(parameter) is not parameter_locks.state(Parameter(torch.zeros(2)))


def test_the_cell_of_a_parameter_that_is_gone_is_forgotten() -> None:
    watch = Watch(2)
    assert len(watch.parameter_locks._states) == 1
    watch.parameters.clear()
    gc.collect()
    assert len(watch.parameter_locks._states) == 0


def test_leaves_are_fresh_and_stand_on_the_storage_of_the_parameters() -> None:
    watch = Watch(2, 3)
    watch.parameters[1].requires_grad_(False)
    with watch.reading() as first, watch.reading() as second:
        assert [leaf.data_ptr() for leaf in first.leaves] == watch.places
        assert [leaf.requires_grad for leaf in first.leaves] == [True, False]
        assert all(leaf.is_leaf for leaf in first.leaves)
        assert all(a is not b for a, b in zip(first.leaves, second.leaves, strict=True))
    assert all(parameter.grad_fn is None for parameter in watch.parameters)


def test_a_step_writes_in_place_when_the_old_values_are_not_needed() -> None:
    watch = Watch(2, 3)
    before = watch.places
    watch.step()
    assert watch.places == before
    assert all(bool((parameter == 1).all()) for parameter in watch.parameters)


def test_a_step_copies_only_pinned_parameters() -> None:
    watch = Watch(2, 3, 4)
    same = [id(parameter) for parameter in watch.parameters]
    before = watch.places
    with watch.reading(1) as reading:
        watch.save(reading.pins[0])
    watch.step()
    assert watch.places[0] == before[0]
    assert watch.places[1] != before[1]
    assert watch.places[2] == before[2]
    assert [id(parameter) for parameter in watch.parameters] == same
    assert torch.equal(reading.leaves[0].detach(), torch.zeros(3))
    assert torch.equal(watch.parameters[1].data, torch.ones(3))


def test_a_forward_that_runs_keeps_the_numbers_it_began_with() -> None:
    watch = Watch(2)
    with watch.reading() as reading:
        watch.step()
        watch.step()
        assert torch.equal(reading.leaves[0].detach(), torch.zeros(2))
    assert torch.equal(watch.parameters[0].data, torch.full((2,), 2.0))


def test_an_open_pass_is_differentiated_with_the_numbers_it_saw() -> None:
    watch = Watch(2)
    with torch.no_grad():
        watch.parameters[0].fill_(3)
    with watch.reading() as reading:
        output = (reading.leaves[0] ** 2).sum()
        watch.save(reading.pins[0])
    watch.step()
    (gradient,) = torch.autograd.grad(output, reading.leaves)
    assert torch.equal(gradient, torch.full((2,), 6.0))


def test_a_saved_parameter_is_copied_once_and_then_written_in_place() -> None:
    watch = Watch(2)
    with watch.reading() as reading:
        watch.save(reading.pins[0])
    watch.step()
    moved = watch.places
    watch.step()
    assert watch.places == moved


def test_a_freed_pin_causes_no_copy() -> None:
    watch = Watch(2)
    with watch.reading() as reading:
        watch.save(reading.pins[0])
        watch.save(reading.pins[0])
    watch.free(reading.pins[0])
    before = watch.places
    watch.free(reading.pins[0])
    watch.step()
    assert watch.places == before


def test_a_pin_belongs_to_a_storage_and_not_to_the_parameter() -> None:
    watch = Watch(2)
    with watch.reading() as old:
        watch.save(old.pins[0])
    watch.step()
    with watch.reading() as new:
        watch.save(new.pins[0])
    watch.free(old.pins[0])
    before = watch.places
    watch.step()
    assert watch.places != before, "the newer pass still needs its numbers"
    assert torch.equal(new.leaves[0], torch.ones(2))


def test_a_reader_waits_for_a_consistent_step_in_progress() -> None:
    watch = Watch(2, 2)
    with watch.writing(0):
        reader = Worker(lambda: sum_of_leaves(watch, 0, 1))
        watch.changed.seen()
        with torch.no_grad():
            watch.parameters[0] += 1
    assert reader.result() == 2.0


def test_a_reader_of_other_parameters_does_not_wait() -> None:
    watch = Watch(2, 2)
    with watch.writing(0):
        assert sum_of_leaves(watch, 1) == 0.0
    assert watch.changed.unused


def test_a_small_parameter_is_copied_while_it_is_read() -> None:
    watch = Watch(COPY_AT_MOST // 4)
    before = watch.places
    with watch.reading():
        watch.step()
    assert watch.places != before
    assert watch.changed.unused


@pytest.mark.usefixtures("patient")
def test_a_large_parameter_that_is_merely_read_is_waited_for() -> None:
    watch = Watch(LARGE, 2)
    before = watch.places
    with watch.reading(0) as reading:
        step = Worker(watch.step)
        watch.changed.seen()
        assert reading.leaves[0].detach().sum().item() == 0.0
        assert watch.parameters[1].detach().sum().item() == 0.0, "nothing is written before everything may be"
    step.result()
    assert watch.places == before
    assert bool((watch.parameters[0] == 1).all())


def test_a_long_reading_of_a_large_parameter_holds_up_neither_steps_nor_other_readers() -> None:
    watch = Watch(LARGE, 2)
    before = watch.places
    with watch.reading() as reading:
        Worker(watch.step).result()
        watch.changed.seen()
        assert watch.places != before, "the step has written to fresh storage"
        assert sum_of_leaves(watch, 0, 1) == LARGE + 2.0
        moved = watch.places
        Worker(watch.step).result()
        assert watch.changed.unused, "only the first step has to wait"
        assert watch.places == moved, "and only the first one copies"
        assert reading.leaves[0].detach().sum().item() == 0.0, "the long reading keeps the numbers it began with"
    assert watch.parameters[0].detach()[0].item() == 2.0


def test_a_step_waits_as_long_as_copying_takes_and_never_long(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    watch = Watch(LARGE, 2 * LARGE, 2)
    monkeypatch.setattr(watch.changed, "wait", lambda seconds: waits.append(seconds) or watch.clock.pass_by(seconds))
    monkeypatch.setattr(locks, "time", watch.clock)
    monkeypatch.setattr(locks, "COPY_SECONDS_PER_BYTE", 1 / (12 * LARGE))
    monkeypatch.setattr(locks, "LONGEST_WAIT_SECONDS", 0.75)
    with watch.reading(0):
        watch.step()
    with watch.reading(1, 2):
        watch.step()
    with watch.reading(0, 1):
        watch.step()
    assert waits == pytest.approx([1 / 3, 2 / 3, 0.75])


def test_a_large_parameter_that_was_saved_is_copied_at_once() -> None:
    watch = Watch(LARGE)
    before = watch.places
    with watch.reading() as reading:
        watch.save(reading.pins[0])
        watch.step()
        assert watch.places != before
    assert watch.changed.unused


@pytest.mark.usefixtures("patient")
def test_a_new_reader_does_not_hold_up_a_step_that_waits_already() -> None:
    watch = Watch(LARGE)
    with watch.reading():
        step = Worker(watch.step)
        watch.changed.seen()
        late = Worker(lambda: sum_of_leaves(watch, 0))
        watch.changed.seen()
    step.result()
    assert late.result() == float(LARGE)


@pytest.mark.usefixtures("patient")
def test_a_call_that_reads_already_may_read_more_although_a_step_waits_for_it() -> None:
    watch = Watch(LARGE, 2)
    with watch.reading(0):
        step = Worker(watch.step)
        watch.changed.seen()
        with watch.reading(1, nested=True) as more:
            assert torch.equal(more.leaves[0], torch.zeros(2))
        with watch.reading(0, nested=True) as again:
            assert again.leaves[0].detach().sum().item() == 0.0
    step.result()
    assert bool((watch.parameters[1] == 1).all())


def test_a_call_that_reads_already_waits_for_a_step_that_has_begun_to_write() -> None:
    watch = Watch(2, 2)
    writing = watch.writing(1)
    with watch.reading(0):
        writing.__enter__()
        reader = Worker(lambda: sum_of_leaves(watch, 1, nested=True))
        watch.changed.seen()
        with torch.no_grad():
            watch.parameters[1] += 1
        writing.__exit__(None, None, None)
    assert reader.result() == 2.0


def test_an_inconsistent_step_never_waits_and_never_copies() -> None:
    watch = Watch(LARGE, 2)
    before = watch.places
    with watch.writing(1), watch.reading(0) as reading:
        watch.save(reading.pins[0])
        watch.step(consistent=False)
        assert bool((reading.leaves[0] == 1).all()), "the running forward sees it, as Hogwild has it"
    assert watch.places == before
    assert watch.changed.unused


def test_two_steps_over_one_parameter_exclude_each_other() -> None:
    watch = Watch(2, 2, 2)
    order: list[str] = []

    def second() -> None:
        with watch.writing(1, 2):
            order.append("second")

    with watch.writing(0, 1):
        other = Worker(second)
        watch.changed.seen()
        order.append("first")
    other.result()
    assert order == ["first", "second"]


def test_steps_over_different_parameters_run_side_by_side() -> None:
    watch = Watch(2, 2)
    both_inside = threading.Barrier(2)

    def step(which: int) -> None:
        with watch.writing(which):
            both_inside.wait(20)

    workers = [Worker(lambda: step(0)), Worker(lambda: step(1))]
    for worker in workers:
        worker.result()


def test_one_optimizer_at_a_time_has_the_gradients_of_a_parameter() -> None:
    watch = Watch(2, 2, 2)
    order: list[str] = []

    def step(*which: int) -> None:
        with watch.parameter_locks.stepping([watch.states[i] for i in which]):
            order.append("second" if 0 not in which else "last")

    with watch.parameter_locks.stepping(watch.states[:2]):
        other = Worker(lambda: step(1, 2))
        watch.changed.seen()
        with watch.parameter_locks.stepping(watch.states[2:]), watch.reading():
            order.append("first")
    other.result()
    assert order == ["first", "second"]
    with pytest.raises(ZeroDivisionError), watch.parameter_locks.stepping(watch.states):
        raise ZeroDivisionError
    Worker(lambda: step(0, 1, 2)).result()
    assert order[2:] == ["last"]


def test_an_exception_in_a_step_lets_everybody_go_on() -> None:
    watch = Watch(2)
    with pytest.raises(ZeroDivisionError), watch.writing():
        raise ZeroDivisionError
    assert sum_of_leaves(watch, 0) == 0.0
    watch.step()
    assert watch.changed.unused


def test_an_exception_in_a_forward_lets_everybody_go_on() -> None:
    watch = Watch(LARGE)
    before = watch.places
    with pytest.raises(ZeroDivisionError), watch.reading():
        raise ZeroDivisionError
    watch.step()
    assert watch.places == before
    assert watch.changed.unused


def test_an_exception_while_copying_lets_everybody_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(2)
    with watch.reading() as reading:
        watch.save(reading.pins[0])

    def fails(self: torch.Tensor) -> torch.Tensor:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", fails)
        with pytest.raises(MemoryError):
            watch.step()
    assert sum_of_leaves(watch, 0) == 0.0
    watch.step()
    assert torch.equal(reading.leaves[0].detach(), torch.zeros(2))


@pytest.mark.parametrize("sizes", [(2, 3), (LARGE, 2)], ids=["copied", "waited for"])
def test_readers_see_whole_steps_however_many_there_are(sizes: tuple[int, ...]) -> None:
    watch = Watch(*sizes)
    start = threading.Barrier(5)

    def read() -> None:
        start.wait(20)
        for _ in range(50):
            with watch.reading() as reading:
                first, second = (leaf.detach()[-1].item() for leaf in reading.leaves)
                assert first == second
                with watch.reading(1, nested=True) as more:
                    assert more.leaves[0].detach()[-1].item() >= second

    def write() -> None:
        start.wait(20)
        for _ in range(25):
            watch.step()

    for worker in [Worker(read), Worker(read), Worker(read), Worker(write), Worker(write)]:
        worker.result()
    assert [parameter.detach()[0].item() for parameter in watch.parameters] == [50.0, 50.0]
    assert [state.pin.reading for state in watch.states] == [0, 0]


def test_leaves_of_no_module_are_known_once_they_are_trained() -> None:
    known, leaf = ParameterLocks(), torch.zeros(3)
    module = HostedObject("ps0", nn.Linear(3, 3), known)
    HostedObject("ps0", leaf, known)
    known.set_requires_grad(list(module.parameters.values()), True)
    assert not known.has_other_leaves
    known.set_requires_grad([leaf], True)
    assert known.has_other_leaves
    others = ParameterLocks()
    HostedObject("ps0", Parameter(torch.zeros(3)), others)
    assert others.has_other_leaves
