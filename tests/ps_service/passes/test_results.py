"""Tests that a call is recorded with everything that its backward needs."""

from __future__ import annotations

import pytest
import torch

from ps_service.engine import Engine
from ps_service.hosting.histories import History
from ps_service.hosting.objects import HostedObject
from ps_service.hosting.references import RRef
from ps_service.passes.arguments import Arguments
from ps_service.passes.pass_context import PassContext
from ps_service.passes.results import Used, record
from ps_wire.errors import ContextEndedError, ContextLostError
from ps_wire.refs import CallKey, ContextId

TRAINER = b"t" * 16
PASS = ContextId(TRAINER, 1)
CALL = CallKey(TRAINER, 1)


@pytest.fixture
def engine(engine: Engine) -> Engine:
    """An owner with a session of the trainer whose passes are made here."""
    engine.sessions.open(TRAINER)
    return engine


MODULE = Used(shares=())
"""What a call of a module without parameters has used."""


def opened(engine: Engine) -> PassContext:
    return engine.contexts.open(PASS, TRAINER)


def recorded(engine: Engine, result: object) -> None:
    """Records a call without arguments."""
    assert record(engine, opened(engine), CALL, Arguments(engine, PASS), MODULE, result) is result


def leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def test_a_recorded_call_can_be_propagated(engine: Engine) -> None:
    x = torch.ones(2)
    arguments = Arguments(engine, PASS)
    arguments.tensor(x, True)
    (inside,) = arguments.enter((x,))
    record(engine, opened(engine), CALL, arguments, MODULE, {"n": torch.zeros(1), "y": inside * 3})
    (of_input,), of_parameters, of_kept = opened(engine).record(CALL).backward([1], [torch.ones(2)], retain_graph=False)
    assert of_input is not None and of_input.tolist() == [3.0, 3.0]
    assert (of_parameters, of_kept) == ([], [])


def test_a_call_opens_its_pass_for_its_caller(engine: Engine) -> None:
    recorded(engine, leaf() * 2)
    assert PASS in engine.contexts
    assert engine.contexts.used_by({TRAINER})


def test_a_call_without_other_owners_has_no_nested_pass(engine: Engine) -> None:
    recorded(engine, leaf() * 2)
    assert opened(engine).called is None


def test_a_result_that_stays_knows_where_it_came_from(engine: Engine) -> None:
    arguments = Arguments(engine, PASS)
    arguments.tensor(x := torch.ones(2), True)
    (inside,) = arguments.enter((x,))
    kept = RRef({"a": torch.ones(1), "b": inside * 3})
    record(engine, opened(engine), CALL, arguments, MODULE, [inside * 2, kept])
    assert kept.history == History(PASS, CALL, (None, 1)), "the tensors of the result itself come first"
    (of_input,), _, _ = opened(engine).record(CALL).backward([1], [torch.ones(2)], retain_graph=False)
    assert of_input is not None and of_input.tolist() == [3.0, 3.0]


def test_a_result_that_stays_without_gradients_has_no_history(engine: Engine) -> None:
    kept = RRef(torch.ones(1))
    recorded(engine, kept)
    assert kept.history is None


def test_an_object_that_was_there_before_gets_no_history(engine: Engine) -> None:
    hosted = HostedObject(engine.name, leaf() * 2, engine.parameter_locks)
    before = RRef.to(engine.registry.add(hosted))
    recorded(engine, [leaf() * 2, before])
    assert before.history is None


def test_results_of_code_without_modules_count_for_its_trainer(engine: Engine) -> None:
    x = torch.ones(1000)
    recorded(engine, leaf())
    assert engine.held.of(TRAINER).nbytes == 0
    result = torch.ones(500, requires_grad=True) * 2
    arguments = Arguments(engine, PASS)
    arguments.tensor(x, True)
    context = opened(engine)
    record(engine, context, CALL._replace(number=2), arguments, Used(), result)
    assert context.held.nbytes == 4 * (1000 + 500)
    engine.contexts.end(PASS)
    assert context.held.nbytes == 0


def test_nothing_is_recorded_in_a_pass_that_has_ended(engine: Engine) -> None:
    context = opened(engine)
    engine.contexts.end(PASS)
    with pytest.raises(ContextEndedError):
        record(engine, context, CALL, Arguments(engine, PASS), MODULE, leaf() * 2)
    with pytest.raises(ContextEndedError):
        opened(engine)


def test_nothing_is_recorded_in_a_pass_that_the_owner_ended(engine: Engine) -> None:
    context = opened(engine)
    engine.contexts.lose(PASS, "it was unused")
    with pytest.raises(ContextLostError, match="it was unused"):
        record(engine, context, CALL, Arguments(engine, PASS), MODULE, leaf() * 2)
