"""Records come out of bytes whole, however those arrive, and large payloads are read into their place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.connections.assembler import Assembler
from ps_wire.connections.connection import Traffic
from ps_wire.connections.frames import Packet
from ps_wire.connections.outbox import packets
from ps_wire.limits import MIB, PART_BYTES
from ps_wire.sockets.reader import END, HEADER, INLINE, RecordReader
from ps_wire.v1.frames_pb2 import Cancel, Frame

LARGE = 64 * 1024


class Reading:
    """A reader, and what it has reported."""

    def __init__(self, most_payload: int = 2 * MIB) -> None:
        self.others: list[tuple[int, int]] = []
        self.garbage = ""
        self.traffic = Traffic()
        self.reader = RecordReader(
            most_payload,
            self.traffic,
            lambda kind, frame, number, nbytes: self.others.append((kind, number)),
            self.refuse,
        )

    def refuse(self, reason: str) -> None:
        self.garbage = reason

    def feed(self, data: bytes, most: int) -> int:
        """Reads bytes in pieces of at most a length; returns how many went straight into other memory."""
        placed, scratch = 0, self.reader.buffer.obj
        while data:
            memory = self.reader.buffer
            piece = data[: min(most, len(memory))]
            memory[: len(piece)] = piece
            placed += 0 if memory.obj is scratch else len(piece)
            data = data[len(piece) :]
            self.reader.read(len(piece))
        return placed


def record(number: int, payload: bytes) -> bytes:
    return record_of(Frame(number=number, cancel=Cancel()), payload)


def record_of(frame: Frame, *payload: bytes | memoryview) -> bytes:
    data = frame.SerializeToString()
    return b"".join((HEADER.pack(INLINE, len(data), 0, sum(map(len, payload))), data, *payload))


@given(
    st.lists(st.sampled_from([0, 1, 100, LARGE - 1, LARGE, LARGE + 1, 300_000, MIB]), max_size=6),
    st.sampled_from([1, 7, 17, 1000, 4096, 70_000, 1 << 20]),
)
def test_records_come_out_as_they_were_written(sizes: list[int], most: int) -> None:
    if most < 1000:
        # Large payloads in bytes one by one would show no more than in a few of them at a time.
        sizes = [min(size, LARGE + 1 if most == 17 else 300) for size in sizes[:2]]
    reading = Reading()
    whole = b"".join(record(number, bytes([number]) * size) for number, size in enumerate(sizes))
    reading.feed(whole + HEADER.pack(END, 0, 5, 0), most)
    assert [(packet.frame.number, b"".join(packet.payload)) for packet in reading.reader.arrived] == [
        (number, bytes([number]) * size) for number, size in enumerate(sizes)
    ]
    assert reading.others == [(END, 5)] and not reading.garbage
    assert reading.traffic.received == len(whole) + HEADER.size


def test_a_large_payload_is_read_into_its_memory() -> None:
    reading = Reading()
    data = record(1, bytes(MIB))
    placed = reading.feed(data, 64 * 1024)
    assert placed >= MIB - 64 * 1024
    (packet,) = reading.reader.arrived
    assert len(packet.payload) == 1 and not packet.payload[0].readonly


@pytest.mark.parametrize("nbytes", [PART_BYTES + 1, 5 * PART_BYTES, 3 * PART_BYTES + LARGE])
def test_parts_are_read_into_the_message_that_they_belong_to(nbytes: int) -> None:
    reading, assembler = Reading(), Assembler(16 * MIB)
    reading.reader.place = assembler.place
    payload = bytes(range(256)) * (nbytes // 256) + bytes(nbytes % 256)
    messages = []
    for packet in packets(Frame(number=3, cancel=Cancel(), payload_bytes=nbytes), [memoryview(payload)]):
        data = record_of(packet.frame, *packet.payload)
        # A small message comes in between.
        reading.feed(record(9, b"") + data, 64 * 1024)
        for each in reading.reader.arrived:
            messages.append(assembler.feed(each))
        reading.reader.arrived.clear()
    (whole,) = (message for message in messages if message is not None and message.frame.number == 3)
    assert whole.payload is not None and whole.payload.tobytes() == payload


def test_a_part_that_was_not_expected_gets_memory_of_its_own() -> None:
    assembler = Assembler(16 * MIB)
    first, second, third = packets(Frame(number=3, payload_bytes=3 * MIB), [memoryview(bytes(3 * MIB))])
    assert assembler.place(second.frame, MIB) is None, "its message has not begun"
    assembler.feed(first)
    assert assembler.place(third.frame, MIB) is None, "the one before is missing"
    assert assembler.place(second.frame, 3 * MIB) is None, "it is longer than the rest"
    assert assembler.place(Frame(number=3), MIB) is None, "it is no part"
    place = assembler.place(second.frame, MIB)
    assert place is not None and len(place) == MIB
    assert assembler.feed(Packet(second.frame, (memoryview(bytes(MIB)),))) is None, "other memory is copied"
    whole = assembler.feed(third)
    assert whole is not None and whole.payload is not None and len(whole.payload) == 3 * MIB


@pytest.mark.parametrize("data", [b"\xff" * 40, HEADER.pack(0, 4, 0, 0) + b"\xff" * 4, HEADER.pack(0, 0, 0, 3 * MIB)])
def test_garbage_is_refused(data: bytes) -> None:
    reading = Reading()
    reading.feed(data, 1000)
    assert reading.garbage
