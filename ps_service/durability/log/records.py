"""The form of a record of the log.

A record is a header, a message and a payload, and begins at a multiple of 64 bytes. Its position counts the bytes of
the whole log before it, so what an earlier use has left in a file is never taken for a record. The checksum is XXH3
over all else. A record also has the position up to which the log was on the disk when it was written. If bytes before
that are damaged, the disk has lost what it had; after it, a machine may have crashed before it wrote them.

A signed record has another magic, and a code of 32 bytes between header and message (see `chain.py`). Its checksum is
over the code, too, so that damage is told from what somebody has changed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import xxhash

ALIGNMENT: Final = 64

_HEADER: Final = struct.Struct("<4sIQQQQ")
"""Magic, bytes of the message, bytes of the payload, position, synced position, checksum."""

HEADER_BYTES: Final = _HEADER.size

_MAGIC: Final = b"PSL1"
_SIGNED: Final = b"PSL2"
_MAGICS: Final = re.compile(b"%b|%b" % (_MAGIC, _SIGNED))

CODE_BYTES: Final = 32

_CHECKSUM: Final = struct.Struct("<Q")


class Record(NamedTuple):
    """A record that was read. `position` is that of its first byte, `end` the one of the next record. The payload is
    memory of the file. `code` is empty in one that is not signed."""

    position: int
    end: int
    synced: int
    message: bytes
    payload: memoryview
    code: bytes = b""


Sign = Callable[[bytearray, memoryview], bytes]
"""Makes the code of a record from its header, without a checksum, and its body."""


def size(message: int, payload: int, is_signed: bool = False) -> int:
    """The bytes of a record with so many bytes of message and payload."""
    used = head_bytes(is_signed) + message + payload
    return used + -used % ALIGNMENT


def head_bytes(is_signed: bool) -> int:
    """The bytes of a record before its message."""
    return HEADER_BYTES + CODE_BYTES if is_signed else HEADER_BYTES


def header(position: int, synced: int, message: int, body: memoryview, sign: Sign | None = None) -> bytes:
    """What stands before the message of a record at a position, which has so many bytes. The body is message and
    payload, as they are in the file: what was written may change in memory meanwhile."""
    magic = _MAGIC if sign is None else _SIGNED
    made = bytearray(_HEADER.pack(magic, message, len(body) - message, position, synced, 0))
    code = b"" if sign is None else sign(made, body)
    digest = xxhash.xxh3_64(made)
    digest.update(code)
    digest.update(body)
    _CHECKSUM.pack_into(made, HEADER_BYTES - _CHECKSUM.size, digest.intdigest())
    return bytes(made) + code


def head_of(record: Record) -> bytes:
    """The header of a signed record, without a checksum."""
    return _HEADER.pack(_SIGNED, len(record.message), len(record.payload), record.position, record.synced, 0)


def read(memory: memoryview, start: int, begin: int = 0) -> Iterator[Record]:
    """The records in a file whose first byte has the position `start`, from the offset `begin` on, up to the first that
    is not whole."""
    offset = begin
    while (record := _at(memory, start, offset)) is not None:
        yield record
        offset = record.end - start


def later(memory: memoryview, start: int, begin: int, end: int | None = None) -> Iterator[Record]:
    """The whole records that begin anywhere between two offsets; the first is a multiple of 64, and the second is the
    end of the file if it is not given."""
    for found in _MAGICS.finditer(memory, begin, len(memory) if end is None else end):
        if found.start() % ALIGNMENT == 0 and (record := _at(memory, start, found.start())) is not None:
            yield record


def begins_at(memory: memoryview, start: int, offset: int) -> bool:
    """Whether a record was begun at an offset, whole or not."""
    if offset + HEADER_BYTES > len(memory):
        return False
    magic, _, _, position, _, _ = _HEADER.unpack_from(memory, offset)
    return bool(magic in (_MAGIC, _SIGNED) and position == start + offset)


def _at(memory: memoryview, start: int, offset: int) -> Record | None:
    """The record at an offset, or None if there is no whole one."""
    body = offset + HEADER_BYTES
    if body > len(memory):
        return None
    magic, message, payload, position, synced, checksum = _HEADER.unpack_from(memory, offset)
    code = body + CODE_BYTES if magic == _SIGNED else body
    end = code + message + payload
    if magic not in (_MAGIC, _SIGNED) or position != start + offset or end > len(memory):
        return None
    begin = bytearray(memory[offset:body])
    _CHECKSUM.pack_into(begin, HEADER_BYTES - _CHECKSUM.size, 0)
    digest = xxhash.xxh3_64(begin)
    digest.update(memory[body:end])
    if digest.intdigest() != checksum:
        return None
    middle = code + message
    following = position + size(message, payload, magic == _SIGNED)
    return Record(position, following, synced, bytes(memory[code:middle]), memory[middle:end], bytes(memory[body:code]))
