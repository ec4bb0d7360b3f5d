"""Tests that decoding hostile bytes gives a value or one of two errors, in memory bounded by their size.

Bytes are changed at random, with fixed seeds, and messages get wrong values in every number.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ps_wire.codec import dtypes
from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.connections import frames
from ps_wire.connections.assembler import Assembler
from ps_wire.connections.outbox import packets
from ps_wire.errors import InvalidArgumentError, TooLargeError
from ps_wire.refs import Ref
from ps_wire.v1.frames_pb2 import Frame, Request
from ps_wire.v1.operations_pb2 import CallRequest
from ps_wire.v1.values_pb2 import DType, Quantizer, Sequence, SparseTensor, Tensor, Value
from tests.fuzz.mutations import changed_bytes
from tests.ps_wire import strategies
from tests.ps_wire.exact import bits_of

REFUSALS = (InvalidArgumentError, TooLargeError)


def a_bit_of_everything(inline: bool) -> bytes:
    """The bytes of a request that holds every kind of value."""
    value = {
        "plain": [
            None,
            True,
            -1,
            2**70,
            0.5,
            "text",
            b"bytes",
            torch.float8_e5m2,
            torch.device("cpu"),
            slice(1, None, 2),
        ],
        "handle": (Ref("ps0", "0123456789abcdef" * 2, "weight"),),
        "dense": [torch.arange(6.0).view(2, 3), torch.zeros(0, 3), torch.tensor(1 + 2j), torch.ones(3).bool()],
        "quantized": torch.quantize_per_tensor(torch.ones(5), 0.5, 1, torch.qint8),
        "sparse": [torch.eye(3).to_sparse(), torch.ones(2, 2).to_sparse(1)],
        (1, "key"): {2: [[[()]]]},
    }
    writer = None if inline else PayloadWriter()
    call = CallRequest(method="forward", args=Encoder(writer).encode(value))
    frame = Frame(number=1, request=Request(call=call))
    if writer is None:
        return frame.SerializeToString()
    frame.payload_bytes = writer.nbytes
    (packet,) = packets(frame, writer.chunks)
    return frames.serialize(packet)


def read(data: bytes) -> Any:
    """What an owner does with the bytes of one frame."""
    message = Assembler(1 << 20).feed(frames.parse(data))
    if message is None or message.error is not None:
        return None
    return Decoder(PayloadReader(message.payload)).decode(message.frame.request.call.args)


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_changed_bytes_are_read_or_refused(seed: int, inline: bool) -> None:
    data, chance = a_bit_of_everything(inline), random.Random(seed)
    assert set(read(data)) == {"plain", "handle", "dense", "quantized", "sparse", (1, "key")}
    refused = 0
    for _ in range(750):
        try:
            read(changed_bytes(data, chance))
        except REFUSALS:
            refused += 1
    assert 150 < refused < 700


@pytest.mark.parametrize("seed", range(4))
def test_stock_protobuf_and_ours_agree_about_changed_bytes(seed: int) -> None:
    data, chance = a_bit_of_everything(inline=False), random.Random(1000 + seed)
    for _ in range(500):
        changed = changed_bytes(data, chance)
        try:
            stock = Frame.FromString(changed)
        except Exception:
            with pytest.raises(InvalidArgumentError):
                frames.parse(changed)
            continue
        ours = frames.parse(changed)
        assert b"".join(ours.payload) == stock.payload
        stock.ClearField("payload")
        assert ours.frame.SerializeToString(deterministic=True) == stock.SerializeToString(deterministic=True)


def test_every_truncation_is_read_or_refused() -> None:
    data = a_bit_of_everything(inline=False)
    refused = 0
    for end in range(len(data)):
        try:
            read(data[:end])
        except REFUSALS:
            refused += 1
    assert refused > len(data) // 2


@settings(max_examples=100)
@given(st.binary(max_size=64))
def test_garbage_is_read_or_refused(data: bytes) -> None:
    try:
        read(data)
    except REFUSALS:
        return


HUGE = st.sampled_from([-2, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)])
QUANTIZERS = st.builds(Quantizer, scale=st.floats(), zero_point=st.integers(-(2**63), 2**63 - 1))
BYTES = bytes(range(256))


def mostly(honest: st.SearchStrategy[Any], lie: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Rarely a lie, so that most messages have one or two and the checks behind the first are reached too."""
    return st.integers(0, 9).flatmap(lambda number: lie if number == 9 else honest)


@st.composite
def described(draw: st.DrawFn, shape: list[int] | None = None) -> Tensor:
    """A tensor that may lie about everything."""
    if shape is None:
        shape = draw(st.lists(mostly(st.integers(0, 4), HUGE), max_size=3))
    number = draw(mostly(st.sampled_from(DType.values()), st.integers(-5, 300)))
    dtype = dtypes.FROM_WIRE.get(number, torch.uint8)
    per_byte = {torch.quint4x2: 2, torch.quint2x4: 4}.get(dtype, 1)
    nbytes = -(-math.prod(shape) * dtype.itemsize // per_byte)
    message = Tensor(dtype=number, shape=shape, requires_grad=draw(st.booleans()))
    if draw(st.booleans()) and 0 <= nbytes <= len(BYTES):
        message.data = draw(mostly(st.just(BYTES[:nbytes]), st.binary(max_size=40)))
    else:
        message.offset = draw(mostly(st.integers(0, 80), st.sampled_from([2**31, 2**63, 2**64 - 1])))
        message.nbytes = draw(mostly(st.just(max(nbytes, 0) % 2**64), st.integers(0, 2**64 - 1)))
    if draw(mostly(st.just(dtype in strategies.QUANTIZED), st.booleans())):
        message.quantizer.CopyFrom(draw(QUANTIZERS))
    return message


@st.composite
def described_sparse(draw: st.DrawFn) -> SparseTensor:
    """A sparse tensor that may lie about everything."""
    shape, count = draw(st.lists(mostly(st.integers(1, 4), HUGE), min_size=1, max_size=3)), draw(st.integers(0, 3))
    rows = draw(st.integers(1, len(shape)))
    coordinates = [draw(mostly(st.integers(0, max(0, min(shape) - 1)), HUGE)) for _ in range(rows * count)]
    indices = Tensor(dtype=DType.DTYPE_INT64, shape=[rows, count], data=np.array(coordinates, np.int64).tobytes())
    return SparseTensor(
        indices=draw(mostly(st.just(indices), described())),
        values=draw(mostly(described([count, *shape[rows:]]), described())),
        shape=draw(mostly(st.just(shape), st.lists(HUGE, max_size=3))),
        coalesced=draw(st.booleans()),
    )


@settings(max_examples=100)
@given(described())
def test_a_tensor_with_wrong_numbers_is_refused_or_consistent(message: Tensor) -> None:
    payload = np.frombuffer(bytearray(BYTES), np.uint8)
    try:
        tensor = Decoder(PayloadReader(payload)).decode(Value(tensor=message))
    except InvalidArgumentError:
        return
    event("accepted")
    assert list(tensor.shape) == list(message.shape)
    assert tensor.dtype is dtypes.from_wire(message.dtype)
    expected = message.data or BYTES[message.offset : message.offset + message.nbytes]
    assert not tensor.numel() or bits_of(tensor) == expected


@settings(max_examples=100)
@given(described_sparse())
def test_a_sparse_tensor_that_lies_about_itself_is_refused_or_can_be_used(message: SparseTensor) -> None:
    try:
        tensor = Decoder(PayloadReader(np.zeros(len(BYTES), np.uint8))).decode(Value(sparse=message))
    except InvalidArgumentError:
        return
    event("accepted")
    assert list(tensor.shape) == list(message.shape)
    assert tensor._indices().shape[1] == tensor._nnz() <= 64
    if tensor._nnz() and tensor.sparse_dim():
        assert (tensor._indices() >= 0).all()
        assert all(row.max() < size for row, size in zip(tensor._indices(), message.shape, strict=False))


@pytest.mark.parametrize("shape", [[2**40], [2**62, 2], [2**31, 2**31], [2**63 - 1], [2**20] * 10], ids=str)
def test_a_huge_shape_without_the_bytes_is_refused_before_anything_is_allocated(shape: list[int]) -> None:
    for nbytes in (0, 4, 2**40, 2**42):
        message = Value(tensor=Tensor(dtype=DType.DTYPE_FLOAT32, shape=shape, nbytes=nbytes))
        with pytest.raises(InvalidArgumentError):
            Decoder(PayloadReader(np.zeros(64, np.uint8))).decode(message)


@pytest.mark.parametrize("shape", [[-1], [2, -3], [-1, -4], [0, -1], [-(2**63)]], ids=str)
def test_negative_sizes_are_refused(shape: list[int]) -> None:
    for data in (b"", bytes(16)):
        with pytest.raises(InvalidArgumentError, match="claims the shape"):
            Decoder(PayloadReader()).decode(Value(tensor=Tensor(dtype=DType.DTYPE_FLOAT32, shape=shape, data=data)))


def test_an_empty_tensor_whose_strides_would_overflow_is_refused() -> None:
    message = Value(tensor=Tensor(dtype=DType.DTYPE_FLOAT32, shape=[2**62, 2**62, 0]))
    with pytest.raises(InvalidArgumentError, match="not a valid tensor"):
        Decoder(PayloadReader()).decode(message)


def test_tensors_that_claim_the_same_bytes_are_refused() -> None:
    item = Value(tensor=Tensor(dtype=DType.DTYPE_UINT8, shape=[1 << 20], nbytes=1 << 20))
    with pytest.raises(InvalidArgumentError, match="none may share any"):
        Decoder(PayloadReader(np.zeros(1 << 20, np.uint8))).decode(Value(list=Sequence(items=[item] * 1000)))
