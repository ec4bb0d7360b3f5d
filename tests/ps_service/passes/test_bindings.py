"""Tests calls that write to parameters while other calls change them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from ps_service.engine import Engine
from ps_service.hosting.objects import HostedObject
from ps_service.passes.call_frame import CallFrame
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


def test_a_first_run_that_writes_beside_another_is_refused(engine: Engine, hosted: HostedObject) -> None:
    refusal = r"others have changed at the same time; theirs were kept\. Call it again"
    with pytest.raises(RuntimeError, match=refusal), writing(engine, hosted, 1.0):
        change(engine, hosted, 7.0)
    assert weight(hosted) == [7.0, 7.0]


def test_called_again_it_has_the_parameters_for_itself(engine: Engine, hosted: HostedObject) -> None:
    with pytest.raises(RuntimeError, match="Call it again"), writing(engine, hosted, 1.0):
        change(engine, hosted, 7.0)
    changed = engine.parameter_locks.changed = Watched(engine.parameter_locks.lock)
    with writing(engine, hosted, 1.0):
        other = Worker(lambda: change(engine, hosted, 8.0))
        changed.seen()
        assert weight(hosted) == [7.0, 7.0], "the other waits, and nothing is written before the call is done"
    other.result()
    assert weight(hosted) == [8.0, 8.0], "the other came after it"
    with writing(engine, hosted, 1.0):
        pass
    assert weight(hosted) == [1.0, 1.0]


def test_a_run_that_raises_beside_another_leaves_the_others_numbers(engine: Engine, hosted: HostedObject) -> None:
    with pytest.raises(ZeroDivisionError), writing(engine, hosted, 1.0):
        change(engine, hosted, 7.0)
        raise ZeroDivisionError
    assert weight(hosted) == [7.0, 7.0]
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
