"""The identifiers of Python source, in their order."""

from __future__ import annotations

import hashlib
import keyword
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LEFT_OUT: Final = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
"""Directories that some installations do not have, or that are not the standard library."""


def standard_library() -> Path:
    """Where the standard library of this Python is installed."""
    return Path(sysconfig.get_paths()["stdlib"])


def source_files(root: Path) -> list[Path]:
    """The Python files below a directory, without tests and installed packages, in a fixed order.

    Raises:
        FileNotFoundError: There is none.
    """
    found = sorted(path for path in root.rglob("*.py") if not _LEFT_OUT.intersection(path.relative_to(root).parts))
    if not found:
        raise FileNotFoundError(f"there are no Python files in {root}")
    return found


def identifiers(path: Path) -> list[str]:
    """The identifiers of a file, in their order, without keywords; what stands before an error if it is not Python."""
    return list(_identifiers(path))


def _identifiers(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        try:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                    yield token.string
        except (SyntaxError, tokenize.TokenError, UnicodeError):
            return


def id_of(token: str) -> int:
    """The 64-bit hash of a token, as int64. It is the same in every process, unlike `hash`."""
    digest = hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
