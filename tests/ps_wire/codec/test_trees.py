"""Tests that tensors are found in the order of the codec, and that replacing them changes nothing else."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from hypothesis import given

from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.records import by_value
from ps_wire.codec.trees import mapped, parts_of, tensors_in, tied
from ps_wire.codec.values import Encoder
from ps_wire.refs import Ref
from tests.ps_wire import strategies
from tests.ps_wire.exact import same


class Turned(NamedTuple):
    """Travels in another order than that of its items."""

    first: torch.Tensor
    second: torch.Tensor


class TurnedList(list[torch.Tensor]):
    """Travels from its end."""


by_value(encode=lambda turned: [turned.second, turned.first], decode=lambda sent: Turned(sent[1], sent[0]))(Turned)
by_value(encode=lambda turned: turned[::-1], decode=lambda sent: TurnedList(sent[::-1]))(TurnedList)


@given(strategies.values)
def test_tensors_are_found_in_the_order_of_the_codec(value: Any) -> None:
    encoder = Encoder(PayloadWriter())
    encoder.encode(value)
    found = list(tensors_in(value))
    assert len(found) == len(encoder.tensors)
    assert all(one is other for one, other in zip(found, encoder.tensors, strict=True))


def test_containers_with_a_codec_of_their_own_are_walked_in_its_order() -> None:
    one, other = torch.ones(1), torch.zeros(1)
    for value in (Turned(one, other), TurnedList([one, other])):
        encoder = Encoder(PayloadWriter())
        encoder.encode(value)
        for found in (encoder.tensors, list(tensors_in(value))):
            assert found[0] is other and found[1] is one
        assert {id(each) for each in parts_of(value) if isinstance(each, torch.Tensor)} == {id(one), id(other)}


@given(strategies.values)
def test_mapping_to_the_same_tensors_changes_nothing(value: Any) -> None:
    before = list(tensors_in(value))
    again = mapped(value, lambda tensor: tensor)
    assert same(again, value)
    assert all(one is other for one, other in zip(tensors_in(again), before, strict=True))


def test_every_tensor_is_mapped_once_and_nothing_else() -> None:
    tensors = [torch.tensor(float(number)) for number in range(7)]
    key = tensors[2]
    value = [
        tensors[0],
        (1, tensors[1]),
        {key: tensors[3], "k": [tensors[4]]},
        slice(tensors[5], None, tensors[6]),
        "x",
    ]
    seen: list[torch.Tensor] = []

    def double(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor * 2

    doubled = mapped(value, double)
    assert [tensor.item() for tensor in seen] == [0, 1, 2, 3, 4, 5, 6]
    assert [tensor.item() for tensor in tensors_in(doubled)] == [0, 2, 4, 6, 8, 10, 12]
    assert [tensor.item() for tensor in tensors_in(value)] == [0, 1, 2, 3, 4, 5, 6]


def test_a_handle_stays_a_handle() -> None:
    ref = Ref("ps0", "0" * 32)
    kept = mapped([ref, (ref,)], lambda tensor: tensor)
    assert type(kept[0]) is type(kept[1][0]) is Ref


def test_a_named_tuple_becomes_a_plain_one_as_on_the_wire() -> None:
    class Pair(NamedTuple):
        left: torch.Tensor
        right: int

    pair = mapped(Pair(torch.ones(2), 3), lambda tensor: tensor + 1)
    assert type(pair) is tuple
    assert same(pair, (torch.full((2,), 2.0), 3))


@given(strategies.values)
def test_the_parts_of_a_tree_include_all_its_tensors(value: Any) -> None:
    assert set(map(id, tensors_in(value))) == {id(part) for part in parts_of(value) if isinstance(part, torch.Tensor)}


def test_the_parts_of_a_tree_that_contains_itself_are_found_once() -> None:
    tensor = torch.zeros(1)
    circle: list[Any] = [tensor, {"list": ()}]
    circle[1]["list"] = (circle, circle)
    parts = list(parts_of(circle))
    assert sum(part is circle for part in parts) == 1 == sum(part is tensor for part in parts)


def test_a_deep_tree_has_parts() -> None:
    tensor = torch.zeros(1)
    deep: Any = tensor
    for _ in range(10_000):
        deep = [deep]
    assert [part for part in parts_of(deep) if part is tensor]
    while deep is not tensor:  # freeing it at once takes as many nested calls
        (deep,) = deep


def test_a_tensor_that_occurs_several_times_is_changed_once() -> None:
    tensor = torch.ones(2)
    first, (second,), other = mapped((tensor, [tensor], torch.ones(2)), torch.clone)
    assert first is second is not tensor and first is not other


def test_a_state_has_one_tensor_for_the_same_elements() -> None:
    memory = torch.arange(6, dtype=torch.float32)
    state = {"a": memory, "b": memory.detach(), "c": memory[:3], "d": memory[:3], "e": memory.view(2, 3), "f": 1}
    found = tied(state)
    assert list(found) == list(state) and found["f"] == 1
    assert found["b"] is memory and found["d"] is state["c"]
    assert found["c"] is state["c"] and found["e"] is state["e"]
    of_bits = {"a": memory, "b": memory.view(torch.int32), "c": torch.empty(0), "d": torch.empty(0)}
    assert all(found is given for found, given in zip(tied(of_bits).values(), of_bits.values(), strict=True))
    negative = torch.complex(memory, memory).conj().imag
    assert tied({"a": negative, "b": torch._neg_view(negative)})["b"] is not negative
