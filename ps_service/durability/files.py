"""Files and folders written so that a power failure leaves them whole or absent."""

from __future__ import annotations

import os
from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    """Writes a new file and syncs it to the disk. Raises `FileExistsError`, or `OSError` if it cannot be written."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        # Flush first: fsync does not see what is still in Python's buffer.
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Syncs to the disk what others have written into a file. Raises `OSError` if it is not there, or it fails."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Syncs the names in a folder to the disk. Raises `OSError` if it is not there, or it fails."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def publish(folder: Path, name: Path) -> None:
    """Renames a folder, whose files are on the disk, to its final name. Raises `OSError` if the name is taken."""
    sync_folder(folder)
    os.rename(folder, name)
    sync_folder(name.parent)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
