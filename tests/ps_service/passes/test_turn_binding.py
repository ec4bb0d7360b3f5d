"""Tests calls on a module itself while others want it, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from ps_service.engine import Engine
from ps_service.hosting.objects import HostedObject
from ps_service.hosting.turns import Turn
from ps_service.passes.call_frame import CallFrame
from ps_wire.errors import ContextLostError
from ps_wire.runtime.scopes import waiting
from tests.ps_service.threads import Watched, Worker

CODE = "initialize"


@pytest.fixture
def hosted(engine: Engine) -> HostedObject:
    return engine.registry.add(HostedObject(engine.name, nn.Linear(2, 1, bias=False), engine.parameter_locks))


@contextmanager
def writing(engine: Engine, hosted: HostedObject, value: float) -> Iterator[None]:
    """A call that writes a value, and is still running while the block does."""
    with CallFrame(engine.parameter_locks, training=True, recorded=False, grad=False, code=CODE) as call_frame:
        call_frame.bind(hosted).weight.fill_(value)  # type: ignore[operator, union-attr]
        yield


def change(engine: Engine, hosted: HostedObject, value: float) -> None:
    """What a step of an optimizer does."""
    parameters = list(hosted.parameters.values())
    with (
        engine.parameter_locks.stepping(hosted.parameter_states),
        engine.parameter_locks.writing(parameters, hosted.parameter_states, consistent=True),
    ):
        parameters[0].data.fill_(value)


def weight(hosted: HostedObject) -> list[float]:
    numbers: list[float] = hosted.value.weight.detach().flatten().tolist()
    return numbers


def test_a_step_waits_for_a_call_that_has_the_module(engine: Engine, hosted: HostedObject) -> None:
    for _ in range(2):  # the second time, it is known to write
        changed = engine.parameter_locks.changed = Watched(engine.parameter_locks.lock)
        with writing(engine, hosted, 1.0):
            other = Worker(lambda: change(engine, hosted, 8.0))
            changed.seen()
        other.result()
        assert weight(hosted) == [8.0, 8.0], "the other came after it"
        assert CODE in hosted.writers


@pytest.mark.parametrize("is_known", [False, True])
def test_others_do_not_wait_for_ever(
    engine: Engine, hosted: HostedObject, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    if is_known:
        with writing(engine, hosted, 1.0):
            pass
    assert hosted.views is not None
    monkeypatch.setattr(hosted.views.turns, "_patience", 0.0)
    with pytest.raises(ContextLostError, match="Run the pass again"), writing(engine, hosted, 2.0):
        Worker(lambda: change(engine, hosted, 7.0)).result()
        assert weight(hosted) == [7.0, 7.0]
        with writing(engine, hosted, 3.0):
            pass
    assert weight(hosted) == [3.0, 3.0]


def test_others_have_the_module_while_a_call_waits(engine: Engine, hosted: HostedObject) -> None:
    with writing(engine, hosted, 1.0):
        with waiting:
            Worker(lambda: change(engine, hosted, 7.0)).result()
        assert weight(hosted) == [7.0, 7.0]
        hosted.value.weight.data.mul_(2)
    assert weight(hosted) == [14.0, 14.0]


def test_a_call_that_cannot_have_the_module_again_takes_it_from_nobody(
    engine: Engine, hosted: HostedObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = hosted.views.turns
    assert turns is not None
    monkeypatch.setattr(turns, "take", _refusing(turns.take))
    with pytest.raises(ZeroDivisionError), writing(engine, hosted, 1.0), waiting:
        pass
    assert turns.holder is None


def _refusing(take: Callable[[Turn], None]) -> Callable[[Turn], None]:
    """Lets a turn begin once, and raises afterwards."""
    taken = 0

    def refuse(turn: Turn) -> None:
        nonlocal taken
        taken += 1
        if taken > 1:
            raise ZeroDivisionError
        take(turn)

    return refuse


def test_a_call_inside_another_of_the_same_module_does_not_wait(engine: Engine, hosted: HostedObject) -> None:
    for _ in range(2):  # the second time, it is known to write
        with writing(engine, hosted, 1.0):
            with writing(engine, hosted, 2.0):
                pass
            assert weight(hosted) == [2.0, 2.0]
        assert weight(hosted) == [2.0, 2.0]
        assert CODE in hosted.writers


@pytest.mark.parametrize("raised", [True, False])
def test_the_writes_of_a_single_run_count(engine: Engine, hosted: HostedObject, raised: bool) -> None:
    try:
        with writing(engine, hosted, 1.0):
            if raised:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert raised
    assert torch.equal(hosted.value.weight.detach(), torch.ones(1, 2))
