"""The folder of an export that follows: its files, and the versions that they make up (see `ps_reader/layout.py`)."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch

from ps_reader import layout
from ps_reader.errors import ExportError
from ps_reader.layout import Latest, Manifest, ModuleFile, TableFiles
from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime.locks import ReportingLock
from trainer_client.tables.files import pyarrow_modules

_log: Final = logging.getLogger("trainer_client")

_LOCK: Final = ".lock"
_UNFINISHED: Final = ".unfinished"
"""The folder inside it with files that are being written, also by the library of safetensors."""

_OWN: Final = re.compile(
    r"(version-\d+\.json|latest\.json|[\w.-]+-[0-9a-f]{8}-[0-9a-f]{12}-\d+\.(safetensors|parquet))"
)


class Parquet:
    """Writes parts of tables as Parquet: `id`, `removed`, and `values`, which are null where the row has gone."""

    def __init__(self) -> None:
        self._arrow, self._parquet = pyarrow_modules()

    def write(self, path: Path, part: Mapping[str, torch.Tensor]) -> None:
        """Writes a part into a new file."""
        values, gone = part["values"].float(), len(part["removed"])
        flat = self._arrow.array(torch.cat([values.new_zeros(gone, values.shape[1]), values]).view(-1).numpy())
        mask = self._arrow.array(torch.cat([torch.ones(gone), torch.zeros(len(values))]).bool().numpy())
        columns = {
            "id": self._arrow.array(torch.cat([part["removed"], part["ids"]]).numpy()),
            "removed": mask,
            "values": self._arrow.FixedSizeListArray.from_arrays(flat, values.shape[1], mask=mask),
        }
        self._parquet.write_table(self._arrow.table(columns), path)


def twin_of(path: Path) -> Path:
    """The file in the format of Parquet that has the same rows as a part."""
    return path.with_suffix(".parquet")


class Folder:
    """Its methods block. One program at a time writes into it."""

    def __init__(self, path: Path, keep: int, parquet: bool = False) -> None:
        self.path: Final = path
        self._keep = keep
        self._parquet = Parquet() if parquet else None
        self._guard = ReportingLock()
        self._is_closed = False
        self._lock = -1
        # The number of the newest version, also of one that cannot be read; 0 before the first.
        self.last = 0
        self._count = 0
        self._export = ""
        # That of the newest version, which another program may have written.
        self._newest_export = ""
        try:
            from safetensors.torch import save_file
        except ImportError:
            raise InvalidArgumentError("an export needs safetensors: pip install safetensors") from None
        self._save: Any = save_file

    def open(self) -> Manifest | None:
        """Makes the folder, or removes what a killed program has left in it. Returns its newest version, if there is
        one that can be read. Raises `InvalidArgumentError` if it has other files, or another program writes into it,
        and `OSError`."""
        with self._guard:
            if not self._is_closed:
                return self._opened()
        return None

    def _opened(self) -> Manifest | None:
        self.path.mkdir(parents=True, exist_ok=True)
        there = set(os.listdir(self.path)) - {_LOCK, _UNFINISHED}
        if strange := sorted(each for each in there if not _OWN.fullmatch(each)):
            raise InvalidArgumentError(
                f"{self.path} has {strange[0]}, which is of no export: give an export a folder of its own"
            )
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgumentError(f"another program writes an export into {self.path}") from None
        shutil.rmtree(self.path / _UNFINISHED, ignore_errors=True)
        (self.path / _UNFINISHED).mkdir()
        with suppress(ExportError):
            self.last = layout.latest(self.path).version
        self.last = max(self.last, *layout.versions(self.path), 0)
        newest = self._newest()
        # A name of its own for each program, so that neither its versions nor its files can be taken for those of
        # another one: also if the folder was put back to an earlier copy.
        self._export = secrets.token_hex(6)
        self._prune()
        if newest is not None:
            self._newest_export = newest.export
            self._replace_now(*self._told(newest.version, newest.as_of))
        return newest

    def _newest(self) -> Manifest | None:
        """The manifest of the newest version, if it can be read. A program that was killed may not have told of it:
        readers may have it all the same, so that no other version gets its number."""
        if self.last:
            try:
                return layout.read_manifest(self.path, self.last)
            except ExportError as error:
                _log.warning("everything is exported anew, as version %d: %s", self.last + 1, error)
        return None

    def close(self) -> None:
        """Lets other programs write into it. Waits while it is being opened, or written into by a thread of an export
        that was cancelled; that writes nothing more."""
        with self._guard:
            self._is_closed = True
            if self._lock >= 0:
                # Closing it is not enough: processes that were forked meanwhile have it open, too.
                fcntl.flock(self._lock, fcntl.LOCK_UN)
                os.close(self._lock)
                self._lock = -1

    def write(self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> str:
        """Writes a file of tensors of an object. Returns the name of the file."""
        self._count += 1
        plain = re.sub(r"^\.|[^\w.-]", "_", name, flags=re.ASCII)[:80]
        digest = hashlib.blake2s(name.encode()).hexdigest()[:8]
        path = self.path / f"{plain}-{digest}-{self._export}-{self._count:08}.safetensors"
        whole = {key: each.contiguous() for key, each in tensors.items()}
        try:
            self._replace(path, lambda new: self._save(whole, new, metadata=dict(metadata or {})))
        except OSError:
            raise
        except KeyError as error:
            raise InvalidArgumentError(f"{name!r} has tensors of {error}, which files of tensors cannot have") from None
        except Exception as error:  # the library has an error of its own for what the disk refuses
            raise OSError(f"{path} cannot be written: {error}") from None
        return path.name

    def write_rows(self, name: str, part: Mapping[str, torch.Tensor]) -> str:
        """Writes a part of a table, and the same as Parquet, if that is wanted. Returns the name of the first."""
        written = self.write(name, part)
        if self._parquet is not None:
            write = self._parquet.write
            self._replace(twin_of(self.path / written), lambda new: write(new, part))
        return written

    def has_all(self, parts: Iterable[str]) -> bool:
        """Whether parts of a table are there in each format that is written."""
        return self._parquet is None or all(twin_of(self.path / name).exists() for name in parts)

    def remove(self, names: Iterable[str]) -> None:
        """Removes files that no version has."""
        with self._changing():
            for name in names:
                (self.path / name).unlink(missing_ok=True)
                twin_of(self.path / name).unlink(missing_ok=True)

    def clear(self, taken: Collection[str]) -> None:
        """Removes files that no version has, but for those that were taken since the newest one."""
        with self._changing():
            self._prune(taken)

    def publish(
        self, version: int, as_of: float, tables: dict[str, TableFiles], modules: dict[str, ModuleFile]
    ) -> Manifest:
        """Makes files that are there the newest version, and removes the oldest ones."""
        manifest = Manifest(version, self._export, as_of, time.time(), tables, modules)
        path = layout.manifest_path(self.path, version)
        self._newest_export = self._export
        self._replace(path, lambda new: new.write_text(manifest.to_json(), "utf-8"))
        self.last = version
        self.tell(version, as_of)
        with self._changing():
            self._prune()
        return manifest

    def tell(self, version: int, as_of: float) -> None:
        """Says which version is the newest, and that it still was at a time."""
        self._replace(*self._told(version, as_of))

    def _told(self, version: int, as_of: float) -> tuple[Path, Callable[[Path], Any]]:
        text = Latest(version, self._newest_export, as_of).to_json()
        return self.path / layout.LATEST, lambda new: new.write_text(text, "utf-8")

    def _prune(self, taken: Collection[str] = ()) -> None:
        """Removes versions that are not kept, and files that neither they have nor were taken. A version that cannot
        be read is in the place of no other: it goes with those before it, and until then no file does, because another
        release of this package may read it."""
        kept, used, are_known = 0, set(taken), True
        for number in reversed(layout.versions(self.path)):
            if kept == self._keep:
                layout.manifest_path(self.path, number).unlink()
                continue
            try:
                used |= layout.read_manifest(self.path, number).files()
                kept += 1
            except ExportError:
                are_known = False
        for name in os.listdir(self.path) if are_known else ():
            is_old = Path(name).suffix in (".safetensors", ".parquet") and f"{Path(name).stem}.safetensors" not in used
            if is_old:
                (self.path / name).unlink()

    def _replace(self, path: Path, write: Callable[[Path], Any]) -> None:
        """Writes a file that is there as a whole or not at all, also when the machine stops."""
        with self._changing():
            self._replace_now(path, write)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A block that changes files, which is at its end before another program may. Raises `OSError` behind that."""
        with self._guard:
            if self._is_closed:
                raise OSError(errno.ECANCELED, "this export has ended")
            yield

    def _replace_now(self, path: Path, write: Callable[[Path], Any]) -> None:
        new = self.path / _UNFINISHED / path.name
        new.touch()  # the library of safetensors makes files that their owner alone may read
        mode = new.stat().st_mode & 0o777
        write(new)
        new.chmod(mode)
        with new.open("rb") as file:
            os.fsync(file.fileno())
        new.rename(path)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
