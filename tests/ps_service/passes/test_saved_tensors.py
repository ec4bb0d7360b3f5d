"""Tests that writes to saved tensors are noticed, and that their storages stay pinned."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from ps_service.memory.held import Held
from ps_service.parameters.locks import ParameterLocks
from ps_service.parameters.state import Pin
from ps_service.passes.saved_tensors import Kept, Pinned, Watch

IN_PLACE = "has been modified by an inplace operation"


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_a_kept_tensor_comes_back_without_its_history() -> None:
    tensor = torch.ones(2, requires_grad=True) * 2
    unpacked = Kept(tensor).unpack()
    assert unpacked.tolist() == [2.0, 2.0]
    assert storage_of(unpacked) == storage_of(tensor)
    assert not unpacked.requires_grad


def test_a_tensor_that_was_written_to_is_refused_with_its_versions() -> None:
    tensor = torch.ones(2)
    tensor.add_(1)
    kept = Kept(tensor)
    kept.unpack()
    tensor.add_(1)
    with pytest.raises(RuntimeError, match=rf"{IN_PLACE}.*shape \(2,\) is at version 2; expected version 1 instead"):
        kept.unpack()


def test_a_kept_tensor_counts_until_it_is_dropped() -> None:
    held, tensor = Held(), torch.ones(100)
    kept = Kept(tensor, held.share(tensor.untyped_storage()))
    assert held.nbytes == 400
    del kept
    assert held.nbytes == 0


def test_a_saved_parameter_is_pinned_while_it_is_kept() -> None:
    pin, parameter = Pin(), Parameter(torch.ones(2))
    assert pin.saved == 0
    pinned = Pinned(parameter, [Watch(pin)])
    other = Pinned(parameter[:1], [Watch(Pin()), Watch(pin)])
    assert pin.saved == 2
    assert pinned.unpack().tolist() == [1.0, 1.0]
    del pinned
    assert pin.saved == 1
    del other
    assert pin.saved == 0


def test_a_saved_parameter_that_another_call_wrote_to_is_refused() -> None:
    locks, pin, parameter = ParameterLocks(), Pin(), Parameter(torch.ones(2))
    pinned = Pinned(parameter, [Watch(Pin()), Watch(pin)])
    locks.note_written(pin)
    with pytest.raises(RuntimeError, match=rf"{IN_PLACE}: a parameter of shape \(2,\), by another call.*Run the pass"):
        pinned.unpack()


def test_a_watch_may_take_the_calls_own_writes_as_seen() -> None:
    locks, pin = ParameterLocks(), Pin()
    locks.note_written(pin)
    watch = Watch(pin)
    pinned = Pinned(Parameter(torch.ones(2)), [watch])
    assert pinned.unpack().tolist() == [1.0, 1.0]
    locks.note_written(pin)
    with pytest.raises(RuntimeError, match=IN_PLACE):
        pinned.unpack()
    watch.seen = pin.written
    assert pinned.unpack().tolist() == [1.0, 1.0]


def test_a_saved_parameter_that_torch_saw_written_to_is_refused_too() -> None:
    parameter = Parameter(torch.ones(2))
    pinned = Pinned(parameter, [Watch(Pin())])
    with torch.no_grad():
        parameter.add_(1)
    with pytest.raises(RuntimeError, match="by the call itself"):
        pinned.unpack()


def test_torch_runs_a_backward_over_kept_tensors() -> None:
    leaf = torch.tensor([3.0], requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(Kept, Kept.unpack):
        result = leaf * leaf
    result.backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [6.0]
