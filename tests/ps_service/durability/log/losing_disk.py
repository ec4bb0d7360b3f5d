"""A disk that loses what was not synced, in any order, as when the power goes; and one that fails."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from ps_service.durability.log.disk import Buffer, Disk

SECTOR = 512
"""Bytes that a disk writes all or none of."""


class LosingDisk(Disk):
    """Keeps what the disk has of each file, beside what the system shows of it."""

    def __init__(self) -> None:
        # By descriptor: the path of the file, and what is on the disk of it.
        self._files: dict[int, Path] = {}
        self._synced: dict[Path, bytes] = {}
        # The renames, new files and removals that are not on the disk, with what undoes each of them.
        self._undo: list[Callable[[], None]] = []

    def create(self, path: Path, nbytes: int) -> int:
        descriptor = super().create(path, nbytes)
        self._files[descriptor] = path
        self._synced[path] = bytes(nbytes)
        self._undo.append(lambda: path.unlink(missing_ok=True))
        return descriptor

    def open(self, path: Path) -> int:
        descriptor = super().open(path)
        self._files[descriptor] = path
        self._synced.setdefault(path, path.read_bytes())
        return descriptor

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        path = self._files[descriptor]
        self._synced[path] = path.read_bytes()

    def rename(self, path: Path, name: Path) -> None:
        super().rename(path, name)
        self._synced[name] = self._synced.pop(path, None) or name.read_bytes()
        self._files = {each: name if of == path else of for each, of in self._files.items()}

        def undo() -> None:
            if name.exists():
                os.rename(name, path)
                self._synced[path] = self._synced.pop(name)

        self._undo.append(undo)

    def remove(self, path: Path) -> None:
        content = path.read_bytes() if path.exists() else None
        super().remove(path)
        synced = self._synced.pop(path, content)
        if content is not None:

            def undo() -> None:
                path.write_bytes(content)
                self._synced[path] = content if synced is None else synced

            self._undo.append(undo)

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self._undo.clear()

    def lose(self, choose: random.Random) -> None:
        """Lets the power go: of what was not synced, each sector and each name is on the disk or not."""
        for undo in reversed(self._undo):
            if choose.random() < 0.5:
                undo()
        self._undo.clear()
        for path, synced in self._synced.items():
            if not path.exists():
                continue
            present = bytearray(path.read_bytes())
            for begin in range(0, len(present), SECTOR):
                sector = slice(begin, begin + SECTOR)
                if present[sector] != synced[sector] and choose.random() < 0.5:
                    present[sector] = synced[sector]
            path.write_bytes(present)
        self._synced = {path: path.read_bytes() for path in self._synced if path.exists()}


class FailingDisk(Disk):
    """Fails while it is told to: `full` has no space for further files, `broken` cannot sync, `worn` cannot write."""

    def __init__(self) -> None:
        self.full = self.broken = self.worn = False

    def create(self, path: Path, nbytes: int) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().create(path, nbytes)

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> None:
        if self.worn:
            # Half of it, as when the disk breaks in the middle.
            super().write(descriptor, [b"".join(buffers)[: sum(map(len, buffers)) // 2]], offset)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().write(descriptor, buffers, offset)

    def sync(self, descriptor: int) -> None:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)
