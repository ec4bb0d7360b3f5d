"""Serializes and parses frames without copying the payload into or out of protobuf.

`Frame.payload` is the last field on the wire, so the bytes of a frame are its header as protobuf writes it, then a tag,
a length and the payload. Any protobuf implementation can read that. This module appends and slices the payload.
Small packets share a message on connections on which each message costs much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.frames_pb2 import Batch, Frame

if TYPE_CHECKING:
    from collections import deque

_PAYLOAD_TAG: Final = Frame.PAYLOAD_FIELD_NUMBER << 3 | 2
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5

SMALL_BYTES: Final = 4 * 1024
"""Largest frame, and largest payload, of a packet in a batch: it is copied once more."""

MOST: Final = 64
"""Most packets in a batch."""


class Packet(NamedTuple):
    """A frame, whose `payload` field is empty, and its payload in pieces."""

    frame: Frame
    payload: tuple[memoryview, ...] = ()

    @property
    def nbytes(self) -> int:
        """Number of payload bytes."""
        return sum(map(len, self.payload))


def serialize(packet: Packet) -> bytes:
    """The bytes of a packet, which are those of a `Frame` message."""
    header = packet.frame.SerializeToString()
    if not packet.payload:
        return header
    return b"".join((header, bytes((_PAYLOAD_TAG,)), _varint(packet.nbytes), *packet.payload))


def parse(data: bytes) -> Packet:
    """The packet that bytes hold; its payload is a view of them. Other bytes are an `InvalidArgumentError`."""
    try:
        tail = _find_payload(data)
        if tail is None:
            frame = Frame.FromString(data)
            if not frame.payload:
                return Packet(frame)
            # Another implementation has put the payload before other fields: valid, but copied.
            payload = memoryview(frame.payload)
            frame.ClearField("payload")
            return Packet(frame, (payload,))
        header, begin = tail
        view = memoryview(data)
        return Packet(Frame.FromString(data[:header]), (view[begin:],))
    except (DecodeError, IndexError) as error:
        raise InvalidArgumentError(f"not a frame: {error}") from None


def _find_payload(data: bytes) -> tuple[int, int] | None:
    """Where the header ends and the payload begins, if the payload is the last field; otherwise None."""
    position, end = 0, len(data)
    while position < end:
        start = position
        tag, position = _read_varint(data, position)
        kind = tag & 7
        if kind == _BYTES:
            length, position = _read_varint(data, position)
            if tag == _PAYLOAD_TAG:
                return (start, position) if length and position + length == end else None
            position += length
        elif kind == _VARINT:
            _, position = _read_varint(data, position)
        elif kind in (_FIXED32, _FIXED64):
            position += 4 if kind == _FIXED32 else 8
        else:
            return None
    return None


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    position += 1
    if byte < 0x80:
        return byte, position
    number, shift = byte & 0x7F, 7
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > 63:
            raise InvalidArgumentError("not a frame: a number of more than 64 bits")


def is_small(packet: Packet) -> bool:
    """Whether a packet may be put into a batch."""
    return packet.nbytes <= SMALL_BYTES and packet.frame.ByteSize() <= SMALL_BYTES


def batched(packets: Sequence[Packet]) -> Iterator[Packet]:
    """The same packets in fewer: adjacent small ones are in batches."""
    small: list[Packet] = []
    for packet in packets:
        if is_small(packet):
            small.append(packet)
            if len(small) < MOST:
                continue
            yield _joined(small)
        else:
            if small:
                yield _joined(small)
            yield packet
        small = []
    if small:
        yield _joined(small)


def unpack(packet: Packet, into: deque[Packet]) -> None:
    """Appends the packets of a batch, or the packet if it is none; another form is an `InvalidArgumentError`."""
    if not packet.frame.HasField("batch"):
        into.append(packet)
        return
    if not packet.frame.batch.frames:
        raise InvalidArgumentError("an empty batch")
    for data in packet.frame.batch.frames:
        inner = parse(data)
        if inner.frame.HasField("batch"):
            raise InvalidArgumentError("a batch in a batch")
        into.append(inner)


def _joined(packets: Sequence[Packet]) -> Packet:
    if len(packets) == 1:
        return packets[0]
    return Packet(Frame(batch=Batch(frames=[serialize(packet) for packet in packets])))
