"""Tests that messages are assembled from interleaved parts, and that wrong lengths cost no memory."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.connections.assembler import Assembler, Message
from ps_wire.connections.frames import Packet, parse, serialize
from ps_wire.connections.outbox import packets
from ps_wire.errors import InvalidArgumentError, OverloadedError, TooLargeError
from ps_wire.limits import MIB, PART_BYTES
from ps_wire.v1.frames_pb2 import Cancel, Frame, Part, Request

LIMIT = 1000
sizes = st.one_of(st.integers(0, 99), st.sampled_from([PART_BYTES - 64, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES]))


def begin(number: int, announced: int, payload: bytes = b"") -> Packet:
    frame = Frame(number=number, request=Request(), payload_bytes=announced)
    return Packet(frame, (memoryview(payload),) if payload else ())


def part(number: int, offset: int, payload: bytes) -> Packet:
    return Packet(Frame(number=number, part=Part(offset=offset)), (memoryview(payload),))


def payload_of(message: Message | None) -> bytes:
    assert message is not None
    assert message.error is None
    assert message.payload is not None
    return message.payload.tobytes()


@given(st.lists(st.lists(sizes, max_size=4), min_size=1, max_size=4), st.randoms())
def test_messages_come_out_whole_however_their_parts_mingle(lengths: list[list[int]], chance: random.Random) -> None:
    sent, streams = {}, []
    for number, each in enumerate(lengths, 1):
        chunks = [np.full(length, number + index, np.uint8).tobytes() for index, length in enumerate(each)]
        sent[number] = b"".join(chunks)
        frame = Frame(number=number, request=Request(), payload_bytes=len(sent[number]))
        streams.append(packets(frame, [*map(memoryview, chunks)]))
    assembler, arrived = Assembler(64 * MIB), {}
    while streams:
        stream = chance.choice(streams)
        packet = next(stream, None)
        if packet is None:
            streams.remove(stream)
            continue
        message = assembler.feed(parse(serialize(packet)))
        if message is not None:
            arrived[message.frame.number] = b"" if message.payload is None else message.payload.tobytes()
            assert message.frame.HasField("request")
    assert arrived == sent


def test_a_message_of_many_parts_is_put_together_exactly() -> None:
    data = random.Random(0).randbytes(20 * PART_BYTES + 17)
    frame = Frame(number=1, request=Request(), payload_bytes=len(data))
    assembler = Assembler(64 * MIB)
    *early, last = [assembler.feed(packet) for packet in packets(frame, [memoryview(data)])]
    assert early == [None] * 20
    assert payload_of(last) == data


def test_a_payload_is_writable_and_not_shared() -> None:
    data = bytearray(b"abc")
    for number, packet_list in enumerate([[begin(1, 3, bytes(data))], [begin(2, 3), part(2, 0, bytes(data))]]):
        assembler = Assembler(LIMIT)
        message = [assembler.feed(packet) for packet in packet_list][-1]
        assert message is not None
        assert message.payload is not None
        message.payload[:] = number
        assert message.payload.tobytes() == bytes([number] * 3)
    assert data == b"abc"


def test_messages_without_a_payload_pass_at_once_also_between_the_parts_of_others() -> None:
    assembler = Assembler(LIMIT)
    assert assembler.feed(begin(1, 6, b"abc")) is None
    cancel = Frame(number=1, cancel=Cancel())
    assert assembler.feed(Packet(cancel)) == Message(cancel)
    assert payload_of(assembler.feed(part(1, 3, b"def"))) == b"abcdef"


def test_a_number_may_be_used_again_once_its_message_was_whole() -> None:
    assembler = Assembler(LIMIT)
    for _ in range(3):
        assert assembler.feed(begin(1, 4, b"ab")) is None
        assert payload_of(assembler.feed(part(1, 2, b"cd"))) == b"abcd"


def test_a_message_exactly_at_the_limit_is_taken() -> None:
    assembler = Assembler(LIMIT)
    assert payload_of(assembler.feed(begin(1, LIMIT, b"x" * LIMIT))) == b"x" * LIMIT
    assert assembler.feed(begin(2, LIMIT)) is None
    assert payload_of(assembler.feed(part(2, 0, b"y" * LIMIT))) == b"y" * LIMIT


@pytest.mark.parametrize("announced", [LIMIT + 1, 2**40, 2**62, 2**64 - 1])
def test_a_message_over_the_limit_is_refused_before_anything_is_allocated(announced: int) -> None:
    message = Assembler(LIMIT).feed(begin(1, announced, b"abc"))
    assert message is not None
    assert message.payload is None
    assert isinstance(message.error, TooLargeError)
    assert f"{announced:,} bytes; the limit is {LIMIT:,}" in str(message.error)
    assert "max_message_bytes" in str(message.error)


def test_the_rest_of_a_refused_message_is_skipped_and_others_go_on() -> None:
    assembler = Assembler(LIMIT)
    assert assembler.feed(begin(1, 4, b"ab")) is None
    refused = assembler.feed(begin(2, LIMIT + 5, b"x" * 5))
    assert refused is not None
    assert refused.error is not None
    assert assembler.feed(part(2, 5, b"x" * 500)) is None
    assert payload_of(assembler.feed(part(1, 2, b"cd"))) == b"abcd"
    assert assembler.feed(part(2, 505, b"x" * 500)) is None
    # All of it has come: the number is free again, and nothing more of it may come.
    with pytest.raises(InvalidArgumentError, match="did not begin"):
        assembler.feed(part(2, 1005, b"x"))
    assert payload_of(assembler.feed(begin(2, 1, b"y"))) == b"y"


def test_any_number_of_large_messages_may_arrive_at_once() -> None:
    assembler, size = Assembler(MIB, max_small=1), MIB - 1
    for number in range(5):
        assert assembler.feed(begin(number, size, b"a")) is None
    for number in range(5):
        assert payload_of(assembler.feed(part(number, 1, b"b" * (size - 1)))) == b"a" + b"b" * (size - 1)


def test_so_many_small_messages_may_be_unfinished_and_those_that_arrive_whole_pass() -> None:
    assembler = Assembler(LIMIT, max_small=2)
    assert assembler.feed(begin(1, LIMIT, b"a")) is None
    assert assembler.feed(begin(2, 1)) is None
    refused = assembler.feed(begin(3, 3, b"c"))
    assert refused is not None and isinstance(refused.error, OverloadedError)
    assert payload_of(assembler.feed(begin(4, LIMIT, b"d" * LIMIT))) == b"d" * LIMIT
    # One that was refused makes no room when it is over, one that becomes whole does.
    assert assembler.feed(part(3, 1, b"cc")) is None
    refused = assembler.feed(begin(5, 3, b"e"))
    assert refused is not None and isinstance(refused.error, OverloadedError)
    assert payload_of(assembler.feed(part(1, 1, b"a" * (LIMIT - 1)))) == b"a" * LIMIT
    assert assembler.feed(begin(6, 2, b"f")) is None
    assert payload_of(assembler.feed(part(6, 1, b"f"))) == b"ff"


@pytest.mark.parametrize("pieces", [(b"abcd",), (b"ab", b"cd"), (b"", b"abcd")])
def test_more_than_was_announced_is_refused(pieces: tuple[bytes, ...]) -> None:
    views = tuple(map(memoryview, pieces))
    with pytest.raises(InvalidArgumentError, match="message 1 is longer than it announced"):
        Assembler(LIMIT).feed(Packet(Frame(number=1, payload_bytes=3), views))
    assembler = Assembler(LIMIT)
    assert assembler.feed(begin(1, 3)) is None
    with pytest.raises(InvalidArgumentError, match="message 1 is longer than it announced"):
        assembler.feed(Packet(Frame(number=1, part=Part()), views))


@pytest.mark.parametrize(("announced", "arrived"), [(0, 1), (5, 6), (LIMIT, LIMIT + 1), (LIMIT + 1, LIMIT + 2)])
def test_a_first_part_longer_than_the_message_is_refused(announced: int, arrived: int) -> None:
    with pytest.raises(InvalidArgumentError, match="message 1 is longer than it announced"):
        Assembler(LIMIT).feed(begin(1, announced, b"a" * arrived))


@pytest.mark.parametrize("announced", [10, LIMIT + 10])
def test_a_message_may_not_begin_again_before_it_is_whole(announced: int) -> None:
    assembler = Assembler(LIMIT)
    assembler.feed(begin(1, announced, b"a"))
    with pytest.raises(InvalidArgumentError, match="message 1 began again before it was whole"):
        assembler.feed(begin(1, 5, b"b"))


def test_a_part_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="a part of message 1, which did not begin"):
        Assembler(LIMIT).feed(part(1, 0, b"a"))


@pytest.mark.parametrize("offset", [0, 1, 3, 2**63])
def test_a_part_that_was_lost_doubled_or_misplaced_is_noticed(offset: int) -> None:
    assembler = Assembler(LIMIT)
    assert assembler.feed(begin(1, 6, b"ab")) is None
    with pytest.raises(InvalidArgumentError, match=f"begins at {offset}, where 2 was expected"):
        assembler.feed(part(1, offset, b"cd"))


def test_an_empty_part_changes_nothing() -> None:
    assembler = Assembler(LIMIT)
    assert assembler.feed(begin(1, 2, b"a")) is None
    assert assembler.feed(Packet(Frame(number=1, part=Part(offset=1)))) is None
    assert payload_of(assembler.feed(part(1, 1, b"b"))) == b"ab"
