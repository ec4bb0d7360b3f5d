"""The file operations of the log, in one place, so that tests can let them fail or lose what was not synced."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ps_service.durability import files

Buffer = bytes | bytearray | memoryview

_MOST_BUFFERS = 1024
"""Most buffers of one write (`IOV_MAX` of Linux)."""


class Disk:
    """Files that are allocated as a whole and written in place. All methods raise `OSError`."""

    def create(self, path: Path, nbytes: int) -> int:
        """Makes a file of that size, on disk space of its own, and returns its descriptor. None is left if it fails."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # A file with holes could be full in the middle of a record.
            os.posix_fallocate(descriptor, 0, nbytes)
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise
        return descriptor

    def open(self, path: Path) -> int:
        """Opens a file that is there, to be read and written."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def close(self, descriptor: int) -> None:
        """Closes a descriptor."""
        os.close(descriptor)

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> None:
        """Writes buffers one behind the other, all of them."""
        if len(buffers) <= _MOST_BUFFERS:
            written = os.pwritev(descriptor, buffers, offset)
            if written == sum(map(len, buffers)):
                return  # always, but for very large ones
        left = [memoryview(each).cast("B") for each in buffers if len(each)]
        while left:
            written = os.pwritev(descriptor, left[:_MOST_BUFFERS], offset)
            offset += written
            done = 0
            while done < len(left) and written >= len(left[done]):
                written -= len(left[done])
                done += 1
            left = left[done:]
            if written:
                left[0] = left[0][written:]

    def sync(self, descriptor: int) -> None:
        """Waits until what was written is on the disk."""
        os.fdatasync(descriptor)

    def rename(self, path: Path, name: Path) -> None:
        """Renames a file."""
        os.rename(path, name)

    def remove(self, path: Path) -> None:
        """Removes a file, if it is there."""
        path.unlink(missing_ok=True)

    def is_at(self, path: Path, descriptor: int) -> bool:
        """Whether a path names the file of a descriptor."""
        try:
            return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def sync_folder(self, folder: Path) -> None:
        """Waits until the names in a folder are on the disk."""
        files.sync_folder(folder)
