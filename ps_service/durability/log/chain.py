"""Signs the records of a log one behind the other.

The code of a record is an HMAC over the name of the owner, the code of the record before, and all of the record but its
checksum. So none can be changed, moved, left out, or taken from another log, but the last ones can be cut off: a log
that ends before them was once what is there now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ps_service.durability.keys import SignatureError
from ps_service.durability.log import records

if TYPE_CHECKING:
    from ps_service.durability.keys import Keys
    from ps_service.durability.log.records import Record

_BEGIN: Final = bytes(records.CODE_BYTES)
"""Stands for the code before the first record."""

_PURPOSE: Final = b"torch-parameter-server record 1\0"


class Chain:
    """The codes of the records of an owner's log. `code` is that of the last record."""

    def __init__(self, keys: Keys, owner: str) -> None:
        self._keys = keys
        self._prefix = _PURPOSE + owner.encode() + b"\0"
        self._likely = 0
        self.code = _BEGIN

    def follow(self, code: bytes) -> None:
        """Goes on behind the record with a code; if that is empty, as before the first record."""
        self.code = code or _BEGIN

    def sign(self, head: bytes | bytearray, body: memoryview) -> bytes:
        """The code of a record behind the last one."""
        return self._keys.code(self._prefix, self.code, head, body)

    def check(self, record: Record) -> None:
        """Goes on behind a record that was read. Raises `SignatureError` if another one was written there."""
        if not record.code:
            raise SignatureError(
                f"the log is not signed from position {record.position} on. If you trust it, start its owner once "
                "without a key file, and stop it in order; then sign its checkpoints with `ps-service sign`"
            )
        parts = (self._prefix, self.code, records.head_of(record), record.message, record.payload)
        signer = self._keys.signer(record.code, *parts, likely=self._likely)
        if signer is None:
            raise SignatureError(
                f"the record of the log at position {record.position} is not what was written there with a key in "
                f"{self._keys.path}: somebody has changed it, or its key is missing there. Restore the directory from "
                "a backup that you trust, or start with an empty one"
            )
        self._likely, self.code = signer, record.code
