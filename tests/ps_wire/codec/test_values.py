"""Tests that values of the closed set arrive unchanged, and that others are refused."""

from __future__ import annotations

import enum
import math
import struct
from collections import OrderedDict
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.codec.payload import PayloadReader, PayloadWriter, joined
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import InvalidArgumentError, TooLargeError
from ps_wire.limits import MAX_DEPTH
from ps_wire.refs import Ref
from ps_wire.v1.frames_pb2 import Frame, Request
from ps_wire.v1.operations_pb2 import CallRequest
from ps_wire.v1.values_pb2 import Dict, Handle, Item, Sequence, Slice, Value
from tests.ps_wire import strategies
from tests.ps_wire.exact import same

OBJECT_ID = "0123456789abcdef" * 2


def through(value: Any, inline: bool = False) -> Any:
    """The value as it comes out at the other end."""
    payload = None if inline else PayloadWriter()
    message = Value.FromString(Encoder(payload).encode(value).SerializeToString())
    buffer = joined(payload.chunks, payload.nbytes) if payload is not None and payload.nbytes else None
    return Decoder(PayloadReader(buffer)).decode(message)


@given(strategies.values, st.booleans())
def test_nested_values_come_out_as_they_went_in(value: Any, inline: bool) -> None:
    assert same(through(value, inline), value)


def test_integers_of_any_size_survive() -> None:
    powers = [2**bits for bits in (0, 1, 7, 31, 32, 62, 63, 64, 65, 127, 128, 1000)] + [10**5000]
    for number in [0, *powers]:
        for each in (number - 1, number, number + 1, -number - 1, -number, -number + 1):
            assert same(through(each), each)


@pytest.mark.parametrize("bits", [0x7FF8000000000000, 0xFFF8000000000001, 0x7FF8DEADBEEF0001, 0x8000000000000000])
def test_the_bits_of_nan_and_minus_zero_survive(bits: int) -> None:
    number = struct.unpack("<d", struct.pack("<Q", bits))[0]
    assert struct.pack("<d", through(number)) == struct.pack("<d", number)


@pytest.mark.parametrize("number", [math.inf, -math.inf, 5e-324, -5e-324, 1.7976931348623157e308, 0.1])
def test_extreme_floats_survive(number: float) -> None:
    assert same(through(number), number)


def test_true_is_not_one_and_one_is_not_a_float() -> None:
    assert same(through([True, 1, 1.0, False, 0, 0.0, -0.0]), [True, 1, 1.0, False, 0, 0.0, -0.0])


def test_text_survives_whatever_it_says() -> None:
    text = ["", "\0", "größe", "日本語", "\U0001f600", "a" * 100_000, "\r\n\t"]
    assert through(text) == text


def test_text_that_utf8_cannot_encode_is_refused_with_advice() -> None:
    for value in ("\ud800", ["fine", "\udfff"], {"\ud83d": 1}):
        with pytest.raises(InvalidArgumentError, match="UTF-8; send bytes"):
            Encoder(None).encode(value)


def test_kinds_that_are_almost_of_the_set_cross_as_the_plain_ones() -> None:
    class Color(enum.IntEnum):
        RED = 3

    class Name(str): ...

    class Reply(NamedTuple):
        left: int
        right: list[int]

    cases = [
        (Color.RED, 3),
        (Name("x"), "x"),
        (np.int8(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (bytearray(b"x"), b"x"),
        (torch.Size([2, 3]), (2, 3)),
        (Reply(1, [2]), (1, [2])),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    ]
    for value, plain in cases:
        assert same(through(value), plain), value


def test_dicts_keep_their_order_and_their_keys() -> None:
    value = {"z": 1, "a": 2, 3: "three", (1, (2,)): None, None: 0, torch.float16: 1, b"k": 2, 2.5: 3}
    assert same(through(value), value)
    assert list(through(value)) == list(value)


def test_slices_survive_with_whatever_bounds() -> None:
    for value in (slice(None), slice(1, 2, -3), slice("a", (1, 2.5)), slice(torch.tensor(3), None)):
        assert same(through(value), value)


@pytest.mark.parametrize(
    "value",
    [object(), 1j, {1, 2}, Fraction(1, 2), range(3), np.ma.zeros(2), iter([]), torch.nn.Linear(1, 1), Ellipsis],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused_with_a_list_of_types(value: object) -> None:
    kind = type(value)
    with pytest.raises(InvalidArgumentError, match=f"a {kind.__module__}.{kind.__qualname__} cannot be sent.*tensor"):
        Encoder(PayloadWriter()).encode([{"deep": (value,)}])


def test_values_outside_the_set_may_be_replaced_by_handles() -> None:
    ref, other = Ref("ps0", OBJECT_ID, "weight"), object()
    encoder = Encoder(None, lambda value: ref.to_message() if value is other else None)
    assert Decoder(PayloadReader()).decode(encoder.encode([other, other])) == [ref, ref]
    with pytest.raises(InvalidArgumentError, match=r"builtins\.object cannot be sent"):
        encoder.encode(object())


def test_handles_are_passed_to_the_callback() -> None:
    ref, seen = Ref("ps0", OBJECT_ID), []
    message = Encoder(None).encode({"a": [ref], ref: 1})
    assert same(Decoder(PayloadReader()).decode(message), {"a": [ref], ref: 1})
    assert Decoder(PayloadReader(), lambda handle: seen.append(handle) or 5).decode(message) == {"a": [5], 5: 1}
    assert seen == [ref.to_message(), ref.to_message()]


def test_tensors_are_passed_to_the_callback_in_order() -> None:
    parameter, sparse = torch.nn.Parameter(torch.ones(2)), torch.eye(2).to_sparse().requires_grad_()
    payload, met = PayloadWriter(), []
    encoder = Encoder(payload)
    message = encoder.encode([parameter, {"s": sparse, "x": torch.zeros(1)}])
    assert [id(tensor) for tensor in encoder.tensors[:2]] == [id(parameter), id(sparse)]

    def note(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        assert not tensor.requires_grad
        met.append((tensor.layout, requires_grad))
        return tensor.to_dense() + 1

    reader = PayloadReader(joined(payload.chunks, payload.nbytes))
    value = Decoder(reader, on_tensor=note).decode(message)
    assert met == [(torch.strided, True), (torch.sparse_coo, True), (torch.strided, False)]
    assert same(value, [torch.full((2,), 2.0), {"s": torch.eye(2) + 1, "x": torch.ones(1)}])


@pytest.mark.parametrize("kind", [list, tuple, dict, slice])
def test_values_may_be_nested_up_to_the_limit_even_inside_a_request(kind: type) -> None:
    value = strategies.nested(MAX_DEPTH, kind)
    assert same(through(value), value)
    frame = Frame(request=Request(call=CallRequest(args=Encoder(None).encode(value))))
    message = Frame.FromString(frame.SerializeToString()).request.call.args
    assert same(Decoder(PayloadReader()).decode(message), value)


def test_the_deepest_place_may_hold_a_quantized_sparse_or_any_other_leaf() -> None:
    innermost = [torch.eye(2).to_sparse(), Ref("ps0", OBJECT_ID), 2**100, torch.ones(1), slice(1, 2)]
    value: Any = innermost
    for _ in range(MAX_DEPTH - 2):
        value = {"k": value}
    frame = Frame(request=Request(call=CallRequest(args=Encoder(None).encode(value))))
    message = Frame.FromString(frame.SerializeToString()).request.call.args
    assert same(Decoder(PayloadReader()).decode(message), value)


@pytest.mark.parametrize("kind", [list, tuple, dict, slice])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 200, 5000])
def test_deeper_nesting_is_refused_before_it_is_sent(kind: type, depth: int) -> None:
    with pytest.raises(TooLargeError, match=f"nested more than {MAX_DEPTH} deep"):
        Encoder(None).encode(strategies.nested(depth, kind))


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TooLargeError, match="nested"):
        Encoder(None).encode(endless)


@pytest.mark.parametrize("kind", ["list", "tuple", "dict", "slice"])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1000])
def test_deeper_nesting_is_refused_when_it_arrives(kind: str, depth: int) -> None:
    innermost = message = Value()
    for _ in range(depth):
        match kind:
            case "list" | "tuple":
                innermost = getattr(innermost, kind).items.add()
            case "dict":
                item = innermost.dict.items.add(key=Value(text="k"))
                innermost = item.value
            case "slice":
                innermost.slice.stop.none.SetInParent()
                innermost.slice.step.none.SetInParent()
                innermost = innermost.slice.start
    innermost.integer = 7
    with pytest.raises(TooLargeError, match=f"nested more than {MAX_DEPTH} deep"):
        Decoder(PayloadReader()).decode(message)


@pytest.mark.parametrize(
    "message",
    [
        Value(),
        Value(list=Sequence(items=[Value(integer=1), Value()])),
        Value(dict=Dict(items=[Item(key=Value(text="k"))])),
        Value(dict=Dict(items=[Item(value=Value(text="k"))])),
        Value(slice=Slice()),
        Value(dtype=0),
        Value(dtype=4711),
        Value(device=""),
        Value(device="toaster:0"),
        Value(device="cuda:99999999999999999999"),
        Value(dict=Dict(items=[Item(key=Value(list=Sequence()), value=Value(integer=1))])),
        Value(dict=Dict(items=[Item(key=Value(dict=Dict()), value=Value(integer=1))])),
    ],
    ids=str,
)
def test_messages_that_no_encoder_makes_are_refused(message: Value) -> None:
    with pytest.raises(InvalidArgumentError):
        Decoder(PayloadReader()).decode(message)


def test_a_handle_may_name_anything_for_the_registry_to_judge() -> None:
    message = Value(handle=Handle(owner="", object_id="not hexadecimal", parameter="a b"))
    assert Decoder(PayloadReader()).decode(message) == Ref("", "not hexadecimal", "a b")


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("tensor", [torch.arange(6.0), torch.eye(2).to_sparse(), torch.empty(0)], ids=str)
def test_a_tensor_that_occurs_several_times_is_sent_once(tensor: torch.Tensor, inline: bool) -> None:
    payload = None if inline else PayloadWriter()
    encoder, other = Encoder(payload, once=True), tensor.clone()
    messages = [encoder.encode([other, tensor, {"again": tensor}]), encoder.encode((tensor, other))]
    assert [id(each) for each in encoder.tensors] == [id(other), id(tensor)]
    arrived = [Value.FromString(each.SerializeToString()) for each in messages]
    buffer = joined(payload.chunks, payload.nbytes) if payload is not None and payload.nbytes else None
    decoder = Decoder(PayloadReader(buffer), once=True)
    (first, second, third), last = map(decoder.decode, arrived)
    assert second is third["again"] is last[0] and first is last[1] is not second
    assert same(second, tensor)


def test_a_tensor_that_stands_for_another_comes_after_it() -> None:
    encoder = Encoder(None, once=True)
    encoded = encoder.encode(torch.ones(2))
    decoder = Decoder(PayloadReader(None), once=True)
    for position in (0, 1, 2**32 - 1):
        with pytest.raises(InvalidArgumentError, match=f"stands for tensor {position} of 0 before it"):
            decoder.decode(Value(same_tensor=position))
    (made,) = decoder.decode(Value(list=Sequence(items=[encoded])))
    assert decoder.decode(Value(same_tensor=0)) is made
    with pytest.raises(InvalidArgumentError, match="where none may"):
        Decoder(PayloadReader(None)).decode(Value(list=Sequence(items=[encoded, Value(same_tensor=0)])))
