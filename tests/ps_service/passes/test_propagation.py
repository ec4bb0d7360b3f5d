"""Tests backwards of recorded calls, and operations on the gradients of a pass."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ps_service.engine import Engine
from ps_service.hosting.leaves import Leaf
from ps_service.hosting.objects import HostedObject
from ps_service.passes import propagation
from ps_service.passes.records import GraphEntry, KeptInput, Record
from ps_wire.errors import ContextEndedError, ContextLostError, InvalidArgumentError, StaleHandleError, UnknownNameError
from ps_wire.refs import CallKey, ContextId, Ref, new_object_id

TRAINER = b"t" * 16
PASS = ContextId(TRAINER, 1)
FIRST, SECOND = CallKey(TRAINER, 1), CallKey(TRAINER, 2)


@pytest.fixture
def engine(engine: Engine) -> Engine:
    """An owner with a session of the trainer whose passes are made here."""
    engine.sessions.open(TRAINER)
    return engine


@pytest.fixture
def layer(engine: Engine) -> HostedObject:
    """A module with the weight [[1, 2]] and the bias [3]."""
    module = nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, 2.0]]))
        module.bias.copy_(torch.tensor([3.0]))
    return engine.registry.add(HostedObject(engine.name, module, engine.parameter_locks))


def refs(layer: HostedObject) -> list[Ref]:
    return list(layer.parameter_refs)


def recorded(engine: Engine, layer: HostedObject, call: CallKey = FIRST) -> None:
    """Records a call with an input that needs a gradient: y = x * weight + bias."""
    leaves = [
        Leaf(ref, parameter, parameter.data.clone().requires_grad_())
        for ref, parameter in zip(layer.parameter_refs, layer.parameters.values(), strict=True)
    ]
    entry = GraphEntry()
    (x,) = entry.enter([torch.tensor([[5.0, 7.0]])])
    weight, bias = (leaf.tensor for leaf in leaves)
    engine.contexts.open(PASS, TRAINER).add(call, Record([x * weight + bias], entry, 1, leaves, [0] * len(leaves)))


def backward(engine: Engine, call: CallKey = FIRST, factor: float = 1.0) -> list[torch.Tensor | None]:
    return propagation.backward(engine, PASS, call, [0], [torch.tensor([[1.0, 10.0]]) * factor], retain_graph=True)


def gradients(engine: Engine) -> dict[str, list[float]]:
    return {each.ref.parameter: each.tensor.flatten().tolist() for each in propagation.gradients(engine, PASS)}


# Backwards


def test_a_backward_gives_the_gradients_of_inputs_and_adds_those_of_parameters(
    engine: Engine, layer: HostedObject
) -> None:
    recorded(engine, layer)
    for _ in range(2):
        (of_input,) = backward(engine)
        assert of_input is not None and of_input.tolist() == [[1.0, 20.0]]
    assert gradients(engine) == {"weight": [10.0, 140.0], "bias": [22.0]}
    assert all(parameter.grad is None for parameter in layer.parameters.values())


def test_gradients_of_results_that_stayed_wait_for_their_calls_backward(engine: Engine, layer: HostedObject) -> None:
    recorded(engine, layer)
    entry = GraphEntry()
    (kept,) = entry.enter([torch.zeros(1, 2)])
    later = Record([kept * 2], entry, 0, [], [], kept_inputs=[KeptInput(FIRST, 0)])
    engine.contexts.find(PASS).add(SECOND, later)
    assert backward(engine, SECOND) == []
    assert gradients(engine) == {}
    (of_input,) = propagation.backward(engine, PASS, FIRST, [], [], retain_graph=False)
    assert of_input is not None and of_input.tolist() == [[2.0, 40.0]]
    assert gradients(engine) == {"weight": [10.0, 140.0], "bias": [22.0]}


@pytest.mark.parametrize(
    ("positions", "values"), [([0], []), ([], [torch.ones(1, 2)]), ([0], [5.0]), ([0, 0], [torch.ones(1, 2), None])]
)
def test_each_output_needs_one_gradient_that_is_a_tensor(
    engine: Engine, layer: HostedObject, positions: list[int], values: list[object]
) -> None:
    recorded(engine, layer)
    with pytest.raises(InvalidArgumentError, match="need as many gradients, all of them tensors"):
        propagation.backward(engine, PASS, FIRST, positions, values, retain_graph=False)
    assert gradients(engine) == {}


def test_a_backward_needs_its_pass_and_its_call(engine: Engine, layer: HostedObject) -> None:
    recorded(engine, layer)
    with pytest.raises(ContextLostError, match="does not have the forward pass"):
        backward(engine, SECOND)
    engine.contexts.end(PASS)
    with pytest.raises(ContextEndedError):
        backward(engine)


# Gradients


def test_gradients_are_copies(engine: Engine, layer: HostedObject) -> None:
    recorded(engine, layer)
    backward(engine)
    for each in propagation.gradients(engine, PASS):
        each.tensor.zero_()
    assert gradients(engine) == {"weight": [5.0, 70.0], "bias": [11.0]}


def test_a_pass_that_was_not_used_here_has_none(engine: Engine, layer: HostedObject) -> None:
    assert propagation.gradients(engine, PASS) == []
    assert propagation.others(engine, PASS) == []
    assert propagation.power_sum(engine, PASS, refs(layer), 2.0) == 0.0
    propagation.scale(engine, PASS, refs(layer), 2.0)
    assert PASS not in engine.contexts


def test_a_pass_that_has_ended_is_told(engine: Engine, layer: HostedObject) -> None:
    recorded(engine, layer)
    engine.contexts.end(PASS)
    with pytest.raises(ContextEndedError):
        propagation.gradients(engine, PASS)
    with pytest.raises(ContextEndedError):
        propagation.scale(engine, PASS, refs(layer), 2.0)


@pytest.mark.parametrize(
    ("norm", "expected"),
    [(1.0, 86.0), (2.0, 25.0 + 4900.0 + 121.0), (math.inf, 70.0), (0.5, math.sqrt(5) + math.sqrt(70) + math.sqrt(11))],
)
def test_norms_of_several_parameters_are_added_as_powers(
    engine: Engine, layer: HostedObject, norm: float, expected: float
) -> None:
    recorded(engine, layer)
    backward(engine)
    found = propagation.power_sum(engine, PASS, refs(layer), norm)
    if norm == 0.5:  # the norm of a vector is a power of its sum, which is taken back
        vector = torch.linalg.vector_norm(torch.tensor([5.0, 70.0]), 0.5).item() ** 0.5 + 11.0**0.5
        assert found == pytest.approx(vector)
    else:
        assert found == pytest.approx(expected)


def test_a_norm_that_is_too_large_is_infinite(engine: Engine, layer: HostedObject) -> None:
    recorded(engine, layer)
    backward(engine, factor=1e30)
    assert propagation.power_sum(engine, PASS, refs(layer), 100.0) == math.inf


def test_entries_with_the_same_index_count_as_one(engine: Engine) -> None:
    table = nn.Embedding(3, 1, sparse=True)
    hosted = engine.registry.add(HostedObject(engine.name, table, engine.parameter_locks))
    (ref,), weight = hosted.parameter_refs, table.weight
    leaf = Leaf(ref, weight, weight.data.clone().requires_grad_())
    rows = nn.functional.embedding(torch.tensor([1, 1]), leaf.tensor, sparse=True)
    engine.contexts.open(PASS, TRAINER).add(FIRST, Record([rows], None, 0, [leaf], [0]))
    propagation.backward(engine, PASS, FIRST, [0], [torch.full((2, 1), 3.0)], retain_graph=False)
    assert propagation.power_sum(engine, PASS, [ref], 2.0) == pytest.approx(36.0)


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan")])
def test_a_norm_is_positive(engine: Engine, layer: HostedObject, norm: float) -> None:
    with pytest.raises(InvalidArgumentError, match="the norm must be positive"):
        propagation.power_sum(engine, PASS, refs(layer), norm)


def test_only_the_parameters_that_are_named_are_scaled(engine: Engine, layer: HostedObject) -> None:
    recorded(engine, layer)
    backward(engine)
    propagation.scale(engine, PASS, refs(layer)[:1], 0.5)
    assert gradients(engine) == {"weight": [2.5, 35.0], "bias": [11.0]}


def test_a_parameter_that_is_not_here_is_told(engine: Engine, layer: HostedObject) -> None:
    stale = Ref(engine.name, new_object_id(), "weight")
    unknown = layer.ref._replace(parameter="no_such")
    assert propagation.parameter_of(engine, refs(layer)[0]) is layer.parameters["weight"]
    for ref, error in ((stale, StaleHandleError), (unknown, UnknownNameError)):
        with pytest.raises(error):
            propagation.parameter_of(engine, ref)
        with pytest.raises(error):
            propagation.scale(engine, PASS, [ref], 2.0)
        with pytest.raises(error):
            propagation.power_sum(engine, PASS, [ref], 2.0)
