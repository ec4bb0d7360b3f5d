"""The keys with which an owner signs its checkpoints and its log, and the file that they are in."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ps_wire.regular_files import NotRegularError, open_regular

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEY_BYTES: Final = 32
_LINE: Final = re.compile(rf"[0-9a-fA-F]{{{2 * _KEY_BYTES}}}")
_ID_DIGITS: Final = 8


class KeyFileError(ValueError):
    """A file of keys cannot be used; the message says why, and what to do."""


class SignatureError(ValueError):
    """A checkpoint or a log is not signed with one of the keys; the message says what to do."""


class Keys:
    """Keys of 32 bytes for HMAC-SHA256, from a file. The first signs, and each of them may have signed."""

    def __init__(self, keys: Sequence[bytes], path: Path) -> None:
        self.path = path
        self._made = [hmac.new(key, digestmod=hashlib.sha256) for key in keys]
        self._ids = [_id(key) for key in keys]

    @classmethod
    def read(cls, path: Path) -> Keys:
        """The keys in a file: one a line, as 64 hexadecimal digits. Lines that are empty or begin with # do not count.
        Raises `KeyFileError`."""
        try:
            with open_regular(path) as file:
                mode = os.fstat(file.fileno()).st_mode
                lines = file.read().decode("ascii").splitlines()
        except NotRegularError as error:
            raise KeyFileError(str(error)) from None
        except OSError as error:
            raise KeyFileError(
                f"the keys in {path} cannot be read: {error.strerror}; `ps-service checkpoint-key {path}` makes one"
            ) from error
        except UnicodeDecodeError:
            lines = [""]  # below it is told what the file has to hold
        if mode & stat.S_IRWXO:
            raise KeyFileError(f"every user of this host may use the keys in {path}: chmod o= {path}")
        found = [line for each in lines if (line := each.strip()) and not line.startswith("#")]
        if not found or not all(map(_LINE.fullmatch, found)):
            raise KeyFileError(f"{path} has to hold a key of {2 * _KEY_BYTES} hexadecimal digits in each line")
        return cls([bytes.fromhex(each) for each in found], path)

    def code(self, *parts: bytes | bytearray | memoryview, number: int = 0) -> bytes:
        """The HMAC-SHA256 of these parts, one behind the other, with the key of this number."""
        made = self._made[number].copy()
        for each in parts:
            made.update(each)
        return made.digest()

    def signer(self, code: bytes, *parts: bytes | bytearray | memoryview, likely: int = 0) -> int | None:
        """The number of the key with which this code of these parts was made; None if it is none of them. The `likely`
        one is tried first."""
        for number in sorted(range(len(self._made)), key=lambda each: each != likely):
            if hmac.compare_digest(self.code(*parts, number=number), code):
                return number
        return None

    def sign(self, content: bytes) -> bytes:
        """A line that signs the content of a file with the first key."""
        return f"hmac-sha256 {self._ids[0]} {self.code(content).hex()}\n".encode()

    def check(self, content: bytes, signature: bytes) -> str:
        """Why a line of `sign` does not sign a content with one of the keys; empty if it does."""
        fields = signature.decode("ascii", "replace").split()
        if len(fields) != 3 or fields[0] != "hmac-sha256":
            return "its signature cannot be read"
        if fields[1] not in self._ids:
            return f"it was signed with the key {fields[1]}, which is not in {self.path}"
        number = self._ids.index(fields[1])
        is_right = hmac.compare_digest(self.code(content, number=number).hex().encode(), fields[2].encode())
        return "" if is_right else "it is not what was signed: somebody has changed it"


def make(path: Path) -> str:
    """Writes a new key into a new file, or before those of a file that is there. Returns what the key is known by.
    Raises `KeyFileError` if such a file is none of keys, and `OSError` if it cannot be written."""
    key = secrets.token_bytes(_KEY_BYTES)
    before = b""
    if path.exists():
        Keys.read(path)
        before = path.read_bytes()
    growing = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    descriptor = os.open(growing, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(f"# {_id(key)}\n{key.hex()}\n".encode() + before)
        os.replace(growing, path)
    except BaseException:
        growing.unlink(missing_ok=True)
        raise
    return _id(key)


def _id(key: bytes) -> str:
    return hashlib.sha256(b"torch-parameter-server key " + key).hexdigest()[:_ID_DIGITS]
