"""Opens files that somebody else may have put there: only regular ones, so that no reader waits for ever."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from io import BufferedReader

_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegularError(OSError):
    """Something else than a file has the name of one; the message says what."""


def open_regular(path: Path) -> BufferedReader:
    """Opens a file for reading. A link to one is followed. What is no file is a `NotRegularError`.

    Opening a FIFO waits for a writer, and a device may have no end, so neither is opened.
    """
    _check(path, path.stat())
    # What has the name may have changed since: it is then not waited for, either.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(path, os.fstat(descriptor))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check(path: Path, found: os.stat_result) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise NotRegularError(f"{path} is {_KINDS.get(kind, 'something else')}, and not a file")
