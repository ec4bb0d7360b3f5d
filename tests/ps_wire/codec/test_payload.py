"""Tests that buffers are aligned at their offsets, and that the reader returns exactly those bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.codec.payload import ALIGNMENT, PayloadReader, PayloadWriter, joined
from ps_wire.errors import InvalidArgumentError


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_bytes_are_read_at_the_offsets_of_the_writer(pieces: list[bytes]) -> None:
    writer = PayloadWriter()
    offsets = [writer.add(memoryview(piece)) for piece in pieces]
    assert writer.nbytes == sum(map(len, writer.chunks))
    reader = PayloadReader(joined(writer.chunks, writer.nbytes))
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    taken = [reader.take(offset, len(piece)) for offset, piece in zip(offsets, pieces, strict=True)]
    assert [each.tobytes() for each in taken] == pieces


def test_the_writer_does_not_copy() -> None:
    data, writer = bytearray(b"before"), PayloadWriter()
    writer.add(memoryview(data))
    data[:] = b"after!"
    assert joined(writer.chunks, writer.nbytes).tobytes() == b"after!"


def test_the_reader_gives_writable_bytes_without_a_copy() -> None:
    buffer = np.zeros(ALIGNMENT + 8, np.uint8)
    PayloadReader(buffer).take(ALIGNMENT, 4)[:] = 9
    assert buffer[ALIGNMENT:].tolist() == [9, 9, 9, 9, 0, 0, 0, 0]


def test_bytes_that_are_not_aligned_are_copied() -> None:
    buffer = np.zeros(8, np.uint8)
    PayloadReader(buffer).take(2, 4)[:] = 9
    assert not buffer.any()


def test_few_bytes_do_not_keep_a_large_message() -> None:
    large, small = np.zeros(1 << 20, np.uint8), np.zeros(1 << 10, np.uint8)
    assert not np.shares_memory(PayloadReader(large).take(0, 64), large)
    assert np.shares_memory(PayloadReader(large).take(0, 1 << 19), large)
    assert np.shares_memory(PayloadReader(small).take(0, 64), small)


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 9), (8, 1), (9, 0), (4, 5), (1 << 63, 1), (0, 1 << 63), (1 << 64, 0)]
)
def test_bytes_that_are_not_there_are_refused(offset: int, nbytes: int) -> None:
    with pytest.raises(InvalidArgumentError, match="of a payload of 8"):
        PayloadReader(np.zeros(8, np.uint8)).take(offset, nbytes)


def test_no_more_bytes_are_handed_out_than_there_are() -> None:
    reader = PayloadReader(np.zeros(8, np.uint8))
    reader.take(0, 4)
    reader.take(4, 4)
    reader.take(8, 0)
    with pytest.raises(InvalidArgumentError, match="none may share any"):
        reader.take(0, 1)


def test_a_message_without_a_payload_has_no_bytes() -> None:
    with pytest.raises(InvalidArgumentError, match="of a payload of 0"):
        PayloadReader().take(0, 1)


def test_joining_gives_a_buffer_of_its_own() -> None:
    pieces = [bytearray(b"ab"), bytearray(b""), bytearray(b"cde")]
    buffer = joined([memoryview(piece) for piece in pieces], 5)
    pieces[0][:] = b"xx"
    assert buffer.tobytes() == b"abcde"
    assert buffer.flags.writeable
    assert buffer.flags.owndata
