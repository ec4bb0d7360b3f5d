"""The folder of an export of a table, which says as long as it is not whole that it is not."""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from ps_wire.errors import InvalidArgumentError

LIST: Final = "table.json"
"""The file that lists the others. It is written last: a folder without it has no whole export."""

UNFINISHED: Final = ".unfinished"
"""The file that stands in the folder until the export has ended. Its process holds a lock on it meanwhile."""

_OWN: Final = re.compile(r"\.?rows-\d{5,}\.(safetensors|parquet)|\.?" + re.escape(LIST))
"""Names of the files of an export."""


class ExportFolder:
    """The folder that a program writes an export into. Its methods block.

    What a killed program has left is known by the file `UNFINISHED` that nobody has locked, and the next export removes
    it.
    """

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._made: list[Path] = []
        self._descriptor = -1

    def take(self) -> None:
        """Makes the folder, or removes what an export has left in it that was killed.

        Raises `InvalidArgumentError` if it has other files, or another export writes into it, and `OSError` if it
        cannot be made.
        """
        self._make()
        there = self._names()
        if there and (UNFINISHED not in there or LIST in there):
            raise InvalidArgumentError(f"{self._path} is not empty: export a table into a folder of its own")
        self._lock()
        if strange := sorted(name for name in self._names() - {UNFINISHED} if not _OWN.fullmatch(name)):
            self._unlock()
            raise InvalidArgumentError(
                f"{self._path} has {strange[0]}, which is of no export: export a table into a folder of its own"
            )
        self._remove_own()

    def release(self) -> None:
        """The export is whole."""
        (self._path / UNFINISHED).unlink()
        self._unlock()

    def discard(self) -> None:
        """Removes the files of an export that is not whole, and folders that were made for it, or raises `OSError`."""
        if self._descriptor >= 0:
            self._remove_own()
            self.release()
        made, self._made = self._made, []
        for folder in reversed(made):
            with suppress(OSError):  # others may have put something there
                folder.rmdir()

    def _make(self) -> None:
        missing = []
        for each in (self._path, *self._path.parents):
            if each.exists():
                break
            missing.append(each)
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            self._made.append(each)
        self._path.mkdir(exist_ok=True)  # raises if it is no folder

    def _lock(self) -> None:
        path = self._path / UNFINISHED
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another export may have ended meanwhile, and removed it.
            taken = os.path.samestat(os.fstat(descriptor), path.stat())
        except (BlockingIOError, FileNotFoundError):
            taken = False
        except OSError:  # a file system without locks, on which nobody can tell whether another export goes on
            taken = is_new
        if not taken:
            os.close(descriptor)
            raise InvalidArgumentError(f"another export writes into {self._path}: wait for it, or take another folder")
        self._descriptor = descriptor

    def _unlock(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1

    def _remove_own(self) -> None:
        for name in self._names():
            if _OWN.fullmatch(name):
                (self._path / name).unlink()

    def _names(self) -> set[str]:
        return {path.name for path in self._path.iterdir()}
