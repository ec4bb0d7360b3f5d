"""Puts several small packets into one message, for connections on which each message costs much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ps_wire.connections.frames import Packet, parse, serialize
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.frames_pb2 import Batch, Frame

if TYPE_CHECKING:
    from collections import deque

SMALL_BYTES: Final = 4 * 1024
"""Largest frame, and largest payload, of a packet in a batch: it is copied once more."""

MOST: Final = 64
"""Most packets in a batch."""


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
    """Appends the packets of a batch, or the packet if it is none.

    Raises:
        InvalidArgumentError: The batch is empty, or holds something that is no frame, or a batch.
    """
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
