"""Small packets go in batches, in order, and come out as they were."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.connections.frames import MOST, SMALL_BYTES, Packet, batched, parse, serialize, unpack
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.frames_pb2 import Batch, Cancel, Frame, Goodbye


def packet(number: int, nbytes: int = 0) -> Packet:
    payload = (memoryview(bytes([number % 256]) * nbytes),) if nbytes else ()
    return Packet(Frame(number=number, cancel=Cancel(), payload_bytes=nbytes), payload)


def told(packets: list[Packet]) -> list[tuple[int, str | None, bytes]]:
    return [(each.frame.number, each.frame.WhichOneof("body"), b"".join(each.payload)) for each in packets]


@given(st.lists(st.sampled_from([0, 1, SMALL_BYTES, SMALL_BYTES + 1, 100_000]), max_size=100))
def test_packets_come_out_as_they_went_in(sizes: list[int]) -> None:
    sent = [packet(number + 1, nbytes) for number, nbytes in enumerate(sizes)]
    arrived: deque[Packet] = deque()
    for each in batched(sent):
        unpack(parse(serialize(each)), arrived)
    assert told(list(arrived)) == told(sent)


def test_adjacent_small_packets_share_a_batch_and_others_do_not() -> None:
    sent = [
        packet(1),
        packet(2, 100),
        packet(3, SMALL_BYTES + 1),
        packet(4),
        packet(5, 1_000_000),
        *map(packet, (6, 7)),
    ]
    found = [each.frame.WhichOneof("body") for each in batched(sent)]
    assert found == ["batch", "cancel", "cancel", "cancel", "batch"]
    assert [len(each.frame.batch.frames) for each in batched([packet(n) for n in range(MOST + 3)])] == [MOST, 3]


def test_a_long_frame_is_not_put_into_a_batch() -> None:
    long = Packet(Frame(number=1, hello={"owner": "x" * SMALL_BYTES}))
    assert list(batched([long, packet(2), long])) == [long, packet(2), long]


@pytest.mark.parametrize(
    "frames", [[], [b"\xff\xff"], [Frame(batch=Batch(frames=[Frame(goodbye=Goodbye()).SerializeToString()]))]]
)
def test_a_batch_that_makes_no_sense_is_refused(frames: list[bytes | Frame]) -> None:
    data = [each if isinstance(each, bytes) else each.SerializeToString() for each in frames]
    with pytest.raises(InvalidArgumentError):
        unpack(Packet(Frame(batch=Batch(frames=data))), deque())
