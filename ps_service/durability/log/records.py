"""The form of a record of the log.

A record is a header, a message and a payload, and begins at a multiple of 64 bytes. Its position counts the bytes of
the whole log before it, so what an earlier use has left in a file is never taken for a record. The checksum is XXH3
over all else. A record also has the position up to which the log was on the disk when it was written. If bytes before
that are damaged, the disk has lost what it had; after it, a machine may have crashed before it wrote them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import xxhash

if TYPE_CHECKING:
    from ps_service.durability.log.disk import Buffer

ALIGNMENT: Final = 64

_HEADER: Final = struct.Struct("<4sIQQQQ")
"""Magic, bytes of the message, bytes of the payload, position, synced position, checksum."""

_MAGIC: Final = b"PSL1"
_CHECKSUM: Final = struct.Struct("<Q")
_PADDING: Final = bytes(ALIGNMENT)


class Record(NamedTuple):
    """A record that was read. `position` is that of its first byte, `end` the one of the next record. The payload is
    memory of the file."""

    position: int
    end: int
    synced: int
    message: bytes
    payload: memoryview


def size(message: int, payload: int) -> int:
    """The bytes of a record with so many bytes of message and payload."""
    used = _HEADER.size + message + payload
    return used + -used % ALIGNMENT


def encoded(position: int, synced: int, message: bytes, chunks: Sequence[Buffer]) -> list[Buffer]:
    """The buffers of a record at a position; those of the payload are the chunks themselves."""
    nbytes = sum(map(len, chunks))
    header = bytearray(_HEADER.pack(_MAGIC, len(message), nbytes, position, synced, 0))
    digest = xxhash.xxh3_64(header)
    digest.update(message)
    for each in chunks:
        digest.update(each)
    _CHECKSUM.pack_into(header, _HEADER.size - _CHECKSUM.size, digest.intdigest())
    padding = size(len(message), nbytes) - _HEADER.size - len(message) - nbytes
    return [header, message, *chunks, _PADDING[:padding]]


def read(memory: memoryview, start: int, begin: int = 0) -> Iterator[Record]:
    """The records in a file whose first byte has the position `start`, from the offset `begin` on, up to the first that
    is not whole."""
    offset = begin
    while (record := _at(memory, start, offset)) is not None:
        yield record
        offset = record.end - start


def later(memory: memoryview, start: int, begin: int) -> Iterator[Record]:
    """The whole records that lie anywhere behind an offset, which is a multiple of 64."""
    usable = len(memory) - len(memory) % ALIGNMENT
    words = np.frombuffer(memory[:usable], np.uint32).reshape(-1, ALIGNMENT // 4)[:, 0]
    for place in np.flatnonzero(words[begin // ALIGNMENT :] == np.frombuffer(_MAGIC, np.uint32)[0]):
        record = _at(memory, start, begin + int(place) * ALIGNMENT)
        if record is not None:
            yield record


def _at(memory: memoryview, start: int, offset: int) -> Record | None:
    """The record at an offset, or None if there is no whole one."""
    body = offset + _HEADER.size
    if body > len(memory):
        return None
    magic, message, payload, position, synced, checksum = _HEADER.unpack_from(memory, offset)
    end = body + message + payload
    if magic != _MAGIC or position != start + offset or end > len(memory):
        return None
    header = bytearray(memory[offset:body])
    _CHECKSUM.pack_into(header, _HEADER.size - _CHECKSUM.size, 0)
    digest = xxhash.xxh3_64(header)
    digest.update(memory[body:end])
    if digest.intdigest() != checksum:
        return None
    middle = body + message
    return Record(position, position + size(message, payload), synced, bytes(memory[body:middle]), memory[middle:end])
