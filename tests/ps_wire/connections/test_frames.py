"""Tests that the bytes of frames are plain protobuf, and that the payload is not copied."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.codec.payload import PayloadReader, PayloadWriter, joined
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.connections import frames
from ps_wire.connections.frames import Packet
from ps_wire.connections.outbox import packets
from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import PART_BYTES
from ps_wire.v1.frames_pb2 import Cancel, Frame, Goodbye, Hello, Part, Request
from ps_wire.v1.operations_pb2 import CallRequest
from tests.cases import case
from tests.ps_wire import strategies
from tests.ps_wire.exact import same

PAYLOAD_TAG = bytes([Frame.PAYLOAD_FIELD_NUMBER << 3 | 2])

headers = st.one_of(
    st.builds(Frame, number=st.integers(0, 2**64 - 1), payload_bytes=st.integers(0, 2**64 - 1)),
    st.builds(Frame, number=st.integers(0, 300), part=st.builds(Part)),
    st.builds(Frame, hello=st.builds(Hello, protocol=st.integers(0, 9), trainer=st.binary(max_size=16))),
    st.builds(Frame, request=st.builds(Request, timeout_seconds=st.floats())),
)
pieces = st.lists(st.binary(max_size=300), max_size=5)


def packet_of(frame: Frame, chunks: list[bytes]) -> Packet:
    return Packet(frame, tuple(map(memoryview, chunks)))


@given(headers, pieces)
def test_any_protobuf_implementation_reads_our_frames(frame: Frame, chunks: list[bytes]) -> None:
    expected = Frame()
    expected.CopyFrom(frame)
    expected.payload = b"".join(chunks)
    data = frames.serialize(packet_of(frame, chunks))
    assert Frame.FromString(data).SerializeToString(deterministic=True) == expected.SerializeToString(
        deterministic=True
    )


@given(headers, st.binary(max_size=300))
def test_ours_reads_frames_of_any_protobuf_implementation(frame: Frame, payload: bytes) -> None:
    whole = Frame()
    whole.CopyFrom(frame)
    whole.payload = payload
    packet = frames.parse(whole.SerializeToString())
    assert b"".join(packet.payload) == payload
    assert packet.nbytes == len(payload)
    assert packet.frame.SerializeToString() == frame.SerializeToString()


@given(headers, pieces)
def test_ours_reads_our_frames(frame: Frame, chunks: list[bytes]) -> None:
    packet = frames.parse(frames.serialize(packet_of(frame, chunks)))
    assert b"".join(packet.payload) == b"".join(chunks)
    assert packet.frame.SerializeToString() == frame.SerializeToString()
    assert not packet.frame.payload


@given(strategies.values)
def test_a_request_with_any_values_crosses_as_a_frame_of_stock_protobuf(value: Any) -> None:
    writer = PayloadWriter()
    request = Request(call=CallRequest(args=Encoder(writer).encode(value)))
    (packet,) = packets(Frame(number=3, request=request, payload_bytes=writer.nbytes), writer.chunks)
    data = frames.serialize(packet)
    stock = Frame.FromString(data)
    assert len(stock.payload) == stock.payload_bytes == writer.nbytes
    ours = frames.parse(data)
    assert b"".join(ours.payload) == stock.payload
    reader = PayloadReader(joined(ours.payload, ours.nbytes))
    assert same(Decoder(reader).decode(ours.frame.request.call.args), value)


def test_the_payload_is_a_view_of_the_bytes_that_arrived() -> None:
    data = frames.serialize(packet_of(Frame(number=1, part=Part()), [b"x" * 1000, b"y"]))
    (payload,) = frames.parse(data).payload
    assert payload.obj is data
    assert payload.nbytes == 1001


def test_a_frame_without_a_payload_is_only_its_header() -> None:
    frame = Frame(number=5, cancel=Cancel())
    assert frames.serialize(Packet(frame)) == frame.SerializeToString()
    assert frames.parse(frame.SerializeToString()) == Packet(frame)
    assert frames.parse(b"") == Packet(Frame())


@pytest.mark.parametrize("length", [1, 127, 128, 129, 16_383, 16_384, PART_BYTES, PART_BYTES + 1])
def test_lengths_around_the_steps_of_a_varint(length: int) -> None:
    data = frames.serialize(packet_of(Frame(number=length), [b"z" * length]))
    assert Frame.FromString(data).payload == b"z" * length
    assert frames.parse(data).nbytes == length


def test_a_payload_that_is_not_last_is_read_all_the_same() -> None:
    number, goodbye = Frame(number=7).SerializeToString(), Frame(goodbye=Goodbye()).SerializeToString()
    payload = PAYLOAD_TAG + b"\x03abc"
    expected = Frame(number=7, goodbye=Goodbye())
    for data in (payload + number + goodbye, number + payload + goodbye, number + goodbye + payload):
        packet = frames.parse(data)
        assert b"".join(packet.payload) == b"abc"
        assert packet.frame == expected


def test_of_two_payloads_the_last_counts_as_in_protobuf() -> None:
    data = PAYLOAD_TAG + b"\x03abc" + PAYLOAD_TAG + b"\x02de"
    assert b"".join(frames.parse(data).payload) == Frame.FromString(data).payload == b"de"


def test_fields_from_a_newer_protocol_are_skipped() -> None:
    # Field 100 as a varint, 101 as 64 bits, 102 as bytes, 103 as 32 bits, and 104 as an old group.
    unknown = b"\xa0\x06\x96\x01\xa9\x06" + bytes(8) + b"\xb2\x06\x02hi\xbd\x06" + bytes(4)
    group = b"\xc3\x06\x08\x01\xc4\x06"
    for extra in (unknown, unknown + group):
        packet = frames.parse(extra + Frame(number=9).SerializeToString() + PAYLOAD_TAG + b"\x01p")
        assert packet.frame.number == 9
        assert b"".join(packet.payload) == b"p"


def test_a_payload_inside_a_message_is_not_taken_for_the_frame_s() -> None:
    inner = PAYLOAD_TAG + b"\x03abc"
    frame = Frame(number=1, hello=Hello(trainer=inner))
    assert frames.parse(frame.SerializeToString()) == Packet(frame)


def test_bytes_that_are_not_a_frame_are_refused() -> None:
    for data in (
        b"\xff",
        b"\xff" * 3,
        b"\xff" * 20,
        b"\x08",
        b"\x08\xff",
        b"\x12",
        b"\x12\x05ab",
        b"\x7a",
        b"\x7a\x05abcd",
        b"\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x7a" + b"\xff" * 12,
        b"\x09\x00",
        b"\x0d\x00",
        b"\x0b",
        b"\x0c",
        b"\x00\x00",
        b"\x22\x02\x12\x05",
        b"\x12\x03\x1a\x01\xff",
    ):
        with case(data.hex()), pytest.raises(InvalidArgumentError, match="not a frame"):
            frames.parse(data)


def test_a_number_without_an_end_is_given_up_early() -> None:
    for endless in (b"\xff" * 100, b"\x08" + b"\x80" * 100_000, PAYLOAD_TAG + b"\xff" * 100_000):
        with pytest.raises(InvalidArgumentError, match="a number of more than 64 bits"):
            frames.parse(endless)


def test_a_frame_nested_deeper_than_protobuf_allows_is_refused() -> None:
    data = b""
    for _ in range(200):  # lists in lists: field 8 of a value, field 1 of a sequence
        sequence = b"\x0a" + _length(data) + data
        data = b"\x42" + _length(sequence) + sequence
    call = b"\x1a" + _length(data) + data
    request = b"\x72" + _length(call) + call
    with pytest.raises(InvalidArgumentError, match="not a frame"):
        frames.parse(b"\x22" + _length(request) + request)


def _length(data: bytes) -> bytes:
    length, out = len(data), b""
    for _ in range(max(1, math.ceil(length.bit_length() / 7)) - 1):
        out += bytes([length & 0x7F | 0x80])
        length >>= 7
    return out + bytes([length])
