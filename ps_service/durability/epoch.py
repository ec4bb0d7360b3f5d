"""Which owner a data directory belongs to: the one with the highest epoch.

A lock of the file system does not hold between hosts on many network file systems. So each start of an owner makes a
file `epoch-NUMBER` with the next number, which the file system makes for one of them only, and removes earlier ones.
An owner looks whether its file is still there before what it has done counts: if there is a higher one, another owner
reads, or has read, what was there then.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ps_service.durability import files

if TYPE_CHECKING:
    from pathlib import Path

_NAME: Final = re.compile(r"epoch-(\d{6,})")


class FencedError(OSError):
    """Another owner has taken the data directory; the message says so."""


class RemovedError(OSError):
    """The data directory, or the file in it that its owner writes to, is not under its name any more; the message
    says so."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            errno.ESTALE,
            f"{path} was removed or renamed while its owner ran. The state is in memory alone: stop the owner in "
            "order, and it writes a checkpoint",
        )


class Epoch:
    """The epoch of an owner in its data directory, higher than all that are there. Raises `OSError` if its file cannot
    be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.number = 0
        while not self.number:
            self._take(1 + max(self._numbers(), default=0))
        for number in self._numbers():
            if number < self.number:
                self._path(number).unlink(missing_ok=True)
        files.sync_folder(folder)

    def check(self) -> None:
        """Raises `FencedError` if there is a higher epoch, and `OSError` if that cannot be told: `RemovedError` if the
        whole directory is gone."""
        try:
            # Opening asks the server of a network file system, which `stat` need not do.
            os.close(os.open(self._path(self.number), os.O_RDONLY | os.O_CLOEXEC))
            return
        except FileNotFoundError:
            pass
        try:
            newest = max(self._numbers(), default=0)
        except FileNotFoundError:
            raise RemovedError(self._folder) from None
        if newest > self.number:
            raise FencedError(
                errno.ESTALE,
                f"another owner has taken the data directory {self._folder}: it has epoch {newest}, and this one "
                f"{self.number}",
            )
        with suppress(OSError):  # somebody has removed the file
            self._take(self.number)

    def _take(self, number: int) -> None:
        content = f"process {os.getpid()} on {socket.gethostname()}\n".encode()
        with suppress(FileExistsError):  # another owner has begun at the same time
            files.write_file(self._path(number), content)
            self.number = number

    def _numbers(self) -> list[int]:
        return [int(name[1]) for path in self._folder.iterdir() if (name := _NAME.fullmatch(path.name))]

    def _path(self, number: int) -> Path:
        return self._folder / f"epoch-{number:06}"
