"""Tests that a call is recorded with everything that its backward needs."""

from __future__ import annotations

import pytest
import torch

from ps_service.engine import Engine
from ps_service.hosting.histories import History
from ps_service.hosting.objects import HostedObject
from ps_service.hosting.references import RRef
from ps_service.passes.arguments import Arguments
from ps_service.passes.invocation import Recording
from ps_service.passes.results import Results
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


def recorded(engine: Engine, result: object, *inputs: torch.Tensor, is_module: bool = True) -> Arguments:
    """Records a call without parameters."""
    arguments = Arguments(engine, PASS)
    for each in inputs:
        arguments.tensor(each, True)
    results = Results(engine, Recording(PASS, CALL), arguments)
    assert results.record(None, (), (), None, is_module, result) is result
    return arguments


def leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def test_a_recorded_call_can_be_propagated(engine: Engine) -> None:
    x = torch.ones(2)
    arguments = Arguments(engine, PASS)
    arguments.tensor(x, True)
    entry, (inside,) = arguments.enter((x,))
    results = Results(engine, Recording(PASS, CALL), arguments)
    results.record(entry, (), (), None, True, {"n": torch.zeros(1), "y": inside * 3})
    record = engine.contexts.find(PASS).record(CALL)
    (of_input,), of_parameters, of_kept = record.backward([1], [torch.ones(2)], retain_graph=False)
    assert of_input is not None and of_input.tolist() == [3.0, 3.0]
    assert (of_parameters, of_kept) == ([], [])


def test_a_call_opens_its_pass_for_its_caller(engine: Engine) -> None:
    recorded(engine, leaf() * 2)
    assert PASS in engine.contexts
    assert engine.contexts.used_by({TRAINER})


def test_a_call_without_other_owners_has_no_nested_pass(engine: Engine) -> None:
    assert Results(engine, Recording(PASS, CALL), Arguments(engine, PASS)).nested_pass is None


def test_a_result_that_stays_knows_where_it_came_from(engine: Engine) -> None:
    arguments = Arguments(engine, PASS)
    arguments.tensor(x := torch.ones(2), True)
    entry, (inside,) = arguments.enter((x,))
    kept = RRef({"a": torch.ones(1), "b": inside * 3})
    Results(engine, Recording(PASS, CALL), arguments).record(entry, (), (), None, True, [inside * 2, kept])
    assert kept.history == History(PASS, CALL, (None, 1)), "the tensors of the result itself come first"
    record = engine.contexts.find(PASS).record(CALL)
    (of_input,), _, _ = record.backward([1], [torch.ones(2)], retain_graph=False)
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
    recorded(engine, leaf(), is_module=True)
    assert engine.held.of(TRAINER).nbytes == 0
    result = torch.ones(500, requires_grad=True) * 2
    arguments = Arguments(engine, PASS)
    arguments.tensor(x, True)
    results = Results(engine, Recording(PASS, CALL._replace(number=2)), arguments)
    results.record(None, (), (), None, False, result)
    assert results.held.nbytes == 4 * (1000 + 500)
    engine.contexts.end(PASS)
    assert results.held.nbytes == 0


def test_nothing_is_recorded_in_a_pass_that_has_ended(engine: Engine) -> None:
    results = Results(engine, Recording(PASS, CALL), Arguments(engine, PASS))
    engine.contexts.end(PASS)
    with pytest.raises(ContextEndedError):
        results.record(None, (), (), None, True, leaf() * 2)
    with pytest.raises(ContextEndedError):
        Results(engine, Recording(PASS, CALL), Arguments(engine, PASS))


def test_nothing_is_recorded_in_a_pass_that_the_owner_ended(engine: Engine) -> None:
    results = Results(engine, Recording(PASS, CALL), Arguments(engine, PASS))
    engine.contexts.lose(PASS, "it was unused")
    with pytest.raises(ContextLostError, match="it was unused"):
        results.record(None, (), (), None, True, leaf() * 2)
