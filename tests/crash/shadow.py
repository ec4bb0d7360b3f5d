"""What the disk would have of a folder: kept beside it, by the process that writes into it, and used after its end.

The files of the folder are what the system shows of them. Here is, by the inode of each, what was synced of it, and a
journal of the names that were made, changed or removed since their folder was synced.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any, Final

SECTOR: Final = 512
"""Bytes that a disk writes all or none of."""

Entry = dict[str, Any]

# Those of the system, also when a process watches what is done with files.
_fstat, _link, _open, _read, _write = os.fstat, os.link, os.open, os.pread, os.pwrite
_rename, _unlink, _mkdir = os.rename, os.unlink, os.mkdir


class Shadow:
    """The state of the disk under a folder. Paths in it are relative to that."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder = folder
        self._data = place / "data"
        self._removed = place / "removed"
        self._journal = place / "names"
        for each in (self._data, self._removed):
            os.makedirs(each, exist_ok=True)
        self._number = max([0, *(int(each.name) for each in self._removed.iterdir())])
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = _open(self._journal, flags, 0o600)

    def close(self) -> None:
        """Closes the journal."""
        os.close(self._descriptor)

    # By the process that writes

    def synced(self, descriptor: int) -> None:
        """A file was synced. A kill may leave a part of it here, as a sync that had begun does."""
        found = _fstat(descriptor)
        reader = _open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        writer = _open(self._data / str(found.st_ino), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.truncate(writer, found.st_size)
            offset = 0
            while chunk := _read(reader, 1 << 20, offset):
                offset += _write(writer, chunk, offset)
        finally:
            os.close(reader)
            os.close(writer)

    def note(self, **entry: Any) -> None:
        """Names have changed: `made` a file or folder, `renamed` it `to` a name, `removed` it, or `synced` a folder."""
        os.write(self._descriptor, json.dumps(entry).encode() + b"\n")

    def keep(self, path: Path) -> str:
        """Keeps the content of a file that is about to be removed; where."""
        self._number += 1
        _link(path, self._removed / str(self._number))
        return str(self._number)

    def compact(self) -> None:
        """Forgets what is on the disk for good. Nobody writes meanwhile."""
        entries = self._entries()
        left = [each for at, each in enumerate(entries) if "synced" not in each and not _is_synced(entries, at)]
        kept = {each["kept"] for each in left if each.get("kept")}
        for each in list(self._removed.iterdir()):
            if each.name not in kept:
                _unlink(each)
        there = {str(each.stat().st_ino) for each in [*self._files(), *self._removed.iterdir()]}
        for each in list(self._data.iterdir()):
            if each.name not in there:
                _unlink(each)
        new = self._journal.with_name("names.new")
        new.write_text("".join(json.dumps(each) + "\n" for each in left))
        _rename(new, self._journal)
        os.close(self._descriptor)
        self._descriptor = _open(self._journal, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    # After its end

    def lose(self, choose: random.Random) -> None:
        """Lets the power go: of what was not synced, each sector and each name is on the disk or not."""
        entries = self._entries()
        for at in reversed(range(len(entries))):
            if "synced" not in entries[at] and not _is_synced(entries, at) and choose.random() < 0.5:
                self._undo(entries[at])
        for path in self._files():
            self._lose_of(path, choose)
        self.all_synced()

    def all_synced(self) -> None:
        """Everything that is there is on the disk."""
        os.truncate(self._journal, 0)
        for folder in (self._removed, self._data):
            for each in list(folder.iterdir()):
                _unlink(each)
        for path in self._files():
            shutil.copyfile(path, self._data / str(path.stat().st_ino))

    def _undo(self, entry: Entry) -> None:
        if "made" in entry:
            path = self.folder / entry["made"]
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        elif "renamed" in entry:
            path, name = self.folder / entry["renamed"], self.folder / entry["to"]
            if name.exists() and not path.exists():
                _rename(name, path)
        else:
            path = self.folder / entry["removed"]
            if path.exists() or not path.parent.exists():
                return
            if entry.get("kept"):
                _link(self._removed / entry["kept"], path)
            else:
                _mkdir(path, 0o700)

    def _lose_of(self, path: Path, choose: random.Random) -> None:
        known = self._data / str(path.stat().st_ino)
        present = bytearray(path.read_bytes())
        if known.exists():
            synced = known.read_bytes()
        else:
            synced = b""
            # Of a file that was never synced, the disk may not even have the size.
            del present[choose.choice([0, len(present), choose.randrange(len(present) + 1)]) :]
        before = synced[: len(present)] + bytes(max(len(present) - len(synced), 0))
        for begin in range(0, len(present), SECTOR):
            sector = slice(begin, begin + SECTOR)
            if present[sector] != before[sector] and choose.random() < 0.5:
                present[sector] = before[sector]
        path.write_bytes(present)

    def _entries(self) -> list[Entry]:
        # A kill may have left the last one in part.
        return [json.loads(line) for line in self._journal.read_text().splitlines(keepends=True) if line[-1] == "\n"]

    def _files(self) -> list[Path]:
        return [path for path in sorted(self.folder.rglob("*")) if path.is_file() and path.name != "lock"]


def _is_synced(entries: list[Entry], at: int) -> bool:
    """Whether the folder of a name was synced after that had changed."""
    entry = entries[at]
    name = entry.get("made") or entry.get("renamed") or entry.get("removed")
    return any(later.get("synced") == os.path.dirname(name) for later in entries[at + 1 :])
