"""Durable: files and folders that are there after a power failure, whole, or are not there."""

from __future__ import annotations

import os
from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    """Writes a new file; when this returns, its content is on the disk.

    Raises:
        FileExistsError: It is there already.
        OSError: It cannot be written.
    """
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        # In this order: what still stands in Python's buffer is not the kernel's to sync.
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """When this returns, what others have written into a file is on the disk.

    Raises:
        OSError: It is not there, or the disk failed.
    """
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """When this returns, the names in a folder are on the disk.

    Raises:
        OSError: It is not there, or the disk failed.
    """
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def publish(folder: Path, name: Path) -> None:
    """Gives a folder, whose files are on the disk, the name under which it counts.

    Raises:
        OSError: There is something of that name, or the disk failed.
    """
    sync_folder(folder)
    os.rename(folder, name)
    sync_folder(name.parent)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
