"""Tests the backward of one recorded call, what it frees, and the gradients that it waits for."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from torch.nn import Parameter

from ps_service.hosting.leaves import Leaf
from ps_service.passes.records import Gathered, GraphEntry, KeptInput, Record
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import CallKey, Ref
from ps_wire.runtime.latency import Latency
from tests.custom_functions import Doubled

TRAINER = b"t" * 16


def leaf_of(parameter: Parameter, name: str = "weight") -> Leaf:
    return Leaf(Ref("ps0", "0" * 32, name), parameter, parameter.data.requires_grad_(parameter.requires_grad))


@pytest.fixture
def weight() -> Parameter:
    return Parameter(torch.tensor([2.0, 3.0]))


def test_a_backward_gives_the_gradients_of_inputs_and_parameters(weight: Parameter) -> None:
    leaf, entry = leaf_of(weight), GraphEntry()
    (x,) = entry.enter([torch.tensor([5.0, 7.0])])
    record = Record([x * leaf.tensor], entry, 1, [leaf], [0])
    of_inputs, of_parameters, _ = record.backward([0], [torch.tensor([1.0, 10.0])], retain_graph=False)
    assert [each.tolist() for each in of_inputs] == [[2.0, 30.0]]
    ((ref, parameter, tensor),) = of_parameters
    assert (ref, tensor.tolist()) == (leaf.ref, [5.0, 70.0])
    assert parameter is weight
    assert weight.grad is None


def test_several_outputs_are_propagated_together(weight: Parameter) -> None:
    leaf = leaf_of(weight)
    record = Record([leaf.tensor * 2, torch.zeros(3), leaf.tensor.sum()], None, 0, [leaf], [0])
    _, (gradient,), _ = record.backward([0, 2], [torch.ones(2), torch.tensor(5.0)], retain_graph=False)
    assert gradient.tensor.tolist() == [7.0, 7.0]


def test_inputs_that_the_outputs_do_not_depend_on_have_no_gradient(weight: Parameter) -> None:
    leaf, entry = leaf_of(weight), GraphEntry()
    entry.enter([torch.ones(2), torch.ones(2)])
    record = Record([leaf.tensor.sum()], entry, 2, [leaf], [0])
    of_inputs, _, _ = record.backward([0], [torch.tensor(1.0)], retain_graph=False)
    assert of_inputs == [None, None]


def test_parameters_that_were_not_used_have_no_gradient(weight: Parameter) -> None:
    used, unused = leaf_of(weight), leaf_of(Parameter(torch.ones(2)), "unused")
    record = Record([used.tensor.sum()], None, 0, [used, unused], [0, 0])
    _, of_parameters, _ = record.backward([0], [torch.tensor(1.0)], retain_graph=False)
    assert [each.ref.parameter for each in of_parameters] == ["weight"]


def test_parameters_that_are_not_trained_are_passed_over(weight: Parameter) -> None:
    frozen = leaf_of(Parameter(torch.ones(2), requires_grad=False), "frozen")
    leaf = leaf_of(weight)
    record = Record([(leaf.tensor * frozen.tensor).sum()], None, 0, [frozen, leaf], [0, 0])
    _, of_parameters, _ = record.backward([0], [torch.tensor(1.0)], retain_graph=False)
    assert [each.ref.parameter for each in of_parameters] == ["weight"]


def test_a_graph_that_was_retained_is_propagated_again(weight: Parameter) -> None:
    leaf = leaf_of(weight)
    record = Record([(leaf.tensor**2).sum()], None, 0, [leaf], [0])
    for _ in range(2):
        record.backward([0], [torch.tensor(1.0)], retain_graph=True)
    record.backward([0], [torch.tensor(1.0)], retain_graph=False)
    with pytest.raises(RuntimeError, match="second time"):
        record.backward([0], [torch.tensor(1.0)], retain_graph=False)


@pytest.mark.parametrize(
    ("position", "gradient"),
    [
        (0, torch.ones(3)),
        (0, torch.ones(2, dtype=torch.float64)),
        (1, torch.ones(())),
        (2, torch.ones(2)),
        (2**32 - 1, torch.ones(2)),
    ],
    ids=["shape", "dtype", "an output without history", "no such output", "no such output at all"],
)
def test_gradients_that_do_not_fit_are_refused(weight: Parameter, position: int, gradient: torch.Tensor) -> None:
    leaf = leaf_of(weight)
    record = Record([leaf.tensor * 2, torch.ones(())], None, 0, [leaf], [0])
    with pytest.raises(InvalidArgumentError, match=f"output {position}"):
        record.backward([position], [gradient], retain_graph=False)
    _, (fitting,), _ = record.backward([0], [torch.ones(2)], retain_graph=False)
    assert fitting.tensor.tolist() == [2.0, 2.0]


class Saved:
    """Stands for a tensor that a forward saved, so that its end can be seen."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()


def test_a_record_holds_no_numbers_of_its_outputs(weight: Parameter) -> None:
    leaf = leaf_of(weight)
    outputs = [leaf.tensor * 2, Doubled.apply(leaf.tensor), leaf.tensor.to_sparse(), torch.zeros(2)]
    gone = [weakref.ref(output) for output in outputs]
    record = Record(outputs, None, 0, [leaf], [0])
    outputs.clear()
    assert [each() for each in gone] == [None] * 4
    gradients = [torch.tensor([1.0, 10.0]), torch.tensor([100.0, 1000.0]), torch.tensor([3.0, 4.0]).to_sparse()]
    _, (found,), _ = record.backward([0, 1, 2], gradients, retain_graph=False)
    assert found.tensor.tolist() == [205.0, 2024.0]


def test_saved_tensors_are_freed_after_the_last_backward(weight: Parameter) -> None:
    saved: list[weakref.ref[Saved]] = []

    def pack(tensor: torch.Tensor) -> Saved:
        kept = Saved(tensor)
        saved.append(weakref.ref(kept))
        return kept

    leaf, entry = leaf_of(weight), GraphEntry()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        (x,) = entry.enter([torch.tensor([5.0, 7.0])])
        record = Record([(x * leaf.tensor).sum(), (x**2).exp()], entry, 1, [leaf], [0])
    del x
    record.backward([0], [torch.tensor(1.0)], retain_graph=True)
    assert None not in [each() for each in saved]
    record.backward([0], [torch.tensor(1.0)], retain_graph=False)
    # What only the other output needs is still there, and is propagated in a pass of its own.
    assert [each() for each in saved].count(None) == 2
    record.backward([1], [torch.zeros(2)], retain_graph=False)
    assert [each() for each in saved] == [None] * len(saved)
    with pytest.raises(RuntimeError, match="second time"):
        record.backward([1], [torch.zeros(2)], retain_graph=False)


def test_a_parameter_that_moved_is_not_held_in_its_former_place_after_the_last_backward(weight: Parameter) -> None:
    leaf = leaf_of(weight)
    record = Record([leaf.tensor * 2, leaf.tensor + 1], None, 0, [leaf], [0])
    weight.data = weight.data.clone()
    record.backward([0], [torch.ones(2)], retain_graph=False)
    assert leaf.tensor.numel() == 2
    record.backward([1], [torch.ones(2)], retain_graph=False)
    assert leaf.tensor.untyped_storage().nbytes() == 0
    # As locally: this graph has saved nothing, so that nothing is missing.
    _, (again,), _ = record.backward([1], [torch.ones(2)], retain_graph=False)
    assert again.tensor.tolist() == [1.0, 1.0]


# Results that stayed


def test_gradients_of_a_result_that_stayed_are_propagated_with_the_next_backward(weight: Parameter) -> None:
    leaf = leaf_of(weight)
    record = Record([leaf.tensor * 2, leaf.tensor * 3], None, 0, [leaf], [0])
    for call in (2, 3):
        record.gather(1, Gathered((call,), torch.ones(2)))
    _, (gradient,), _ = record.backward([0], [torch.ones(2)], retain_graph=True)
    assert gradient.tensor.tolist() == [8.0, 8.0]
    _, (gradient,), _ = record.backward([0], [torch.ones(2)], retain_graph=False)
    assert gradient.tensor.tolist() == [2.0, 2.0], "what was gathered is propagated once"


def test_without_any_gradient_nothing_is_propagated(weight: Parameter) -> None:
    record = Record([leaf_of(weight).tensor * 2], GraphEntry(), 2, [leaf_of(weight)], [0])
    assert record.backward([], [], retain_graph=False) == ([None, None], [], [])


def test_gradients_of_inputs_that_stayed_come_after_those_of_the_caller() -> None:
    entry = GraphEntry()
    received, kept = entry.enter([torch.ones(1), torch.ones(1)])
    earlier = KeptInput(CallKey(TRAINER, 1), 4)
    record = Record([received * 2 + kept * 3], entry, 1, [], [], kept_inputs=[earlier])
    (of_received,), _, ((of, of_kept),) = record.backward([0], [torch.ones(1)], retain_graph=False)
    assert of_received is not None and of_received.tolist() == [2.0]
    assert (of, of_kept.tolist()) == (earlier, [3.0])


def test_a_backward_is_expected_to_take_as_long_as_those_of_calls_with_as_large_arguments(weight: Parameter) -> None:
    latency, leaf = Latency(), leaf_of(weight)
    assert Record([leaf.tensor.sum()], None, 0, [leaf], [0]).expected_seconds == math.inf, "it must not run on the loop"
    record = Record([leaf.tensor.sum()], None, 0, [leaf], [0], latency, nbytes=100)
    latency.note(1e-6, 1000)
    assert record.expected_seconds == math.inf, "it was never measured"
    latency.note(1e-6, 100)
    assert record.expected_seconds == 1e-6
