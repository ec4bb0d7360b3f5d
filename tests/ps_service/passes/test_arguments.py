"""Tests that tensors that need a gradient enter the graph once, and that handles become references."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from ps_service.engine import Engine
from ps_service.hosting.histories import History
from ps_service.hosting.objects import HostedObject
from ps_service.hosting.references import RRef
from ps_service.passes.arguments import Arguments
from ps_service.passes.records import KeptInput
from ps_wire.errors import ForeignHandleError, StaleHandleError, UnknownNameError
from ps_wire.refs import CallKey, ContextId, Ref, new_object_id
from ps_wire.v1.operations_pb2 import CallRequest
from tests.hosted_models import Affine

PASS = ContextId(b"t" * 16, 1)
CALL = CallKey(b"t" * 16, 3)


def hosted(engine: Engine, value: Any) -> HostedObject:
    return engine.registry.add(HostedObject(engine.name, value, engine.parameter_locks))


def kept(engine: Engine, value: Any, *positions: int | None, context: ContextId = PASS) -> HostedObject:
    """A result of an earlier call of a pass that stayed on this owner."""
    made = hosted(engine, value)
    made.history = History(context, CALL, positions)
    return made


# Tensors


def test_only_tensors_that_need_a_gradient_enter_the_graph(engine: Engine) -> None:
    wanting, plain = torch.ones(2), torch.ones(2)
    arguments = Arguments(engine, PASS)
    assert arguments.tensor(wanting, True) is wanting
    assert arguments.tensor(plain, False) is plain
    first, second = arguments.enter((wanting, plain))
    entry = arguments.entry
    assert entry is not None
    assert first.requires_grad and first.tolist() == [1.0, 1.0]
    assert second is plain
    (first * 3).sum().backward(inputs=[entry.token])
    assert [each.tolist() for each in entry.take_gradients()] == [[3.0, 3.0]]


def test_a_tensor_that_occurs_twice_is_one_in_the_graph(engine: Engine) -> None:
    tensor = torch.ones(1)
    arguments = Arguments(engine, PASS)
    arguments.tensor(tensor, True)
    values = arguments.enter({"a": [tensor], "b": tensor})
    assert values["a"][0] is values["b"]


def test_without_a_pass_nothing_enters_the_graph(engine: Engine) -> None:
    tensor = torch.ones(2)
    arguments = Arguments(engine)
    arguments.tensor(tensor, True)
    assert arguments.wanting == arguments.entering == []
    values = (tensor, 5)
    assert arguments.enter(values) is values
    assert arguments.entry is None


# Handles


def test_a_handle_becomes_a_reference_to_the_object(engine: Engine) -> None:
    affine = hosted(engine, Affine(2, 1))
    arguments = Arguments(engine)
    rref = arguments.handle(affine.ref.to_message())
    assert isinstance(rref, RRef) and rref.hosted is affine and rref.parameter == ""
    name = next(iter(affine.parameters))
    parameter = arguments.handle(affine.ref._replace(parameter=name).to_message())
    assert (parameter.hosted, parameter.parameter) == (affine, name)
    assert arguments.kept == []


def test_a_handle_that_leads_nowhere_is_told(engine: Engine) -> None:
    affine = hosted(engine, Affine(2, 1))
    arguments = Arguments(engine)
    with pytest.raises(StaleHandleError):
        arguments.handle(Ref(engine.name, new_object_id()).to_message())
    with pytest.raises(ForeignHandleError):
        arguments.handle(Ref("ps9", affine.ref.object_id).to_message())
    with pytest.raises(UnknownNameError):
        arguments.handle(affine.ref._replace(parameter="no_such").to_message())


# Results of earlier calls


def test_a_result_of_the_pass_that_stayed_enters_the_graph(engine: Engine) -> None:
    with_history, without = torch.ones(2), torch.full((1,), 7.0)
    result = kept(engine, {"y": with_history, "n": without}, 4, None)
    arguments = Arguments(engine, PASS)
    received = torch.zeros(1)
    arguments.tensor(received, True)
    rref = arguments.handle(result.ref.to_message())
    assert arguments.kept == [KeptInput(CALL, 4)]
    assert [each.shape for each in arguments.entering] == [(1,), (2,)], "those of the caller come first"
    arguments.enter((received, rref))
    entry = arguments.entry
    assert entry is not None
    value = rref.local_value()
    assert value["y"].requires_grad and value["n"] is without
    assert not with_history.requires_grad, "what is kept is not touched"
    (value["y"] * 5).sum().backward(inputs=[entry.token])
    of_received, of_kept = entry.take_gradients()
    assert of_received is None and of_kept is not None and of_kept.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("context", [None, PASS._replace(number=2)], ids=["no pass", "another pass"])
def test_a_result_of_another_pass_is_a_plain_value(engine: Engine, context: ContextId | None) -> None:
    result = kept(engine, torch.ones(2), 0)
    arguments = Arguments(engine, context)
    rref = arguments.handle(result.ref.to_message())
    assert arguments.entering == arguments.kept == []
    assert rref.local_value() is result.value


@pytest.mark.parametrize("context", [None, PASS], ids=["no pass", "its pass"])
def test_a_result_that_was_an_argument_is_freed_with_the_arguments(engine: Engine, context: ContextId | None) -> None:
    shared = torch.ones(2)
    result = kept(engine, [shared, shared], 0, 0)
    request = CallRequest(results=[result.ref.object_id])
    arguments = Arguments(engine, context, request)
    first, second = arguments.result(0), arguments.result(0)
    assert first is not second
    assert first[0] is first[1] is second[0] is second[1] is not shared
    assert arguments.nbytes == shared.nbytes
    engine.registry.withdraw(result)
    gone = weakref.ref(result)
    # Reference counts alone must do: on an owner that is idle the collector does not come.
    gc.disable()
    try:
        del result, arguments
        assert gone() is None
    finally:
        gc.enable()
