"""The folder and the files that the rows of a table are exported into, and read from again."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.regular_files import NotRegularError, open_regular
from ps_wire.runtime.locks import ReportingLock

Format = Literal["safetensors", "parquet"]

Block = dict[str, torch.Tensor]
"""Rows; see `TableContents.blocks`."""

_VERSION: Final = 1

_PART_BYTES: Final = 64 << 20
"""Bytes of rows after which a file is written."""

LIST: Final = "table.json"
"""The file that lists the others. It is written last: a folder without it has no whole export."""

UNFINISHED: Final = ".unfinished"
"""The file that stands in the folder until the export has ended. Its process holds a lock on it meanwhile."""

_OWN: Final = re.compile(r"\.?rows-\d{5,}\.(safetensors|parquet)|\.?" + re.escape(LIST))
"""Names of the files of an export."""


class Safetensors:
    """Reads and writes files with one tensor for each part of a block, under its name."""

    def __init__(self) -> None:
        try:
            from safetensors import safe_open
            from safetensors.torch import save_file
        except ImportError:
            raise InvalidArgumentError(
                'export and restore need safetensors: pip install safetensors, or ask for format="parquet"'
            ) from None
        self._open: Any = safe_open
        self._save: Any = save_file

    def write(self, path: Path, block: Block) -> None:
        """Writes rows into a new file."""
        # The library makes files that only their owner may read. An export is for other programs and users, unlike a
        # checkpoint, so its files have the mode that any new file has here, as those of Parquet and the list do.
        path.touch()
        mode = path.stat().st_mode
        self._save({name: each.contiguous() for name, each in block.items()}, path)
        path.chmod(stat.S_IMODE(mode))

    def shapes(self, path: Path) -> dict[str, tuple[int, ...]]:
        """The shapes of what is in a file, by name."""
        with self._open(path, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118

    def read(self, path: Path, rows: int) -> Iterator[Block]:
        """What is in a file, at most so many rows at a time."""
        with self._open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            count = slices["ids"].get_shape()[0]
            for low in range(0, count, rows):
                yield {name: each[low : min(low + rows, count)].clone() for name, each in slices.items()}


def pyarrow_modules() -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`. Raises `InvalidArgumentError` if they are not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InvalidArgumentError("files in the format of Parquet need pyarrow: pip install pyarrow") from None
    return pyarrow, parquet


class Parquet:
    """The same with one column for each part of a block; several numbers for a row are a list of fixed size."""

    def __init__(self) -> None:
        self._arrow, self._parquet = pyarrow_modules()

    def write(self, path: Path, block: Block) -> None:
        self._parquet.write_table(self._arrow.table({name: self._column(each) for name, each in block.items()}), path)

    def shapes(self, path: Path) -> dict[str, tuple[int, ...]]:
        with self._parquet.ParquetFile(path) as file:
            rows = file.metadata.num_rows
            return {each.name: (rows, *self._width(each.type)) for each in file.schema_arrow}

    def read(self, path: Path, rows: int) -> Iterator[Block]:
        with self._parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(rows):
                yield {name: self._tensor(batch.column(name)) for name in batch.schema.names}

    def _column(self, tensor: torch.Tensor) -> Any:
        if tensor.dim() == 1:
            return self._arrow.array(tensor.numpy())
        flat = self._arrow.array(tensor.float().contiguous().view(-1).numpy())
        return self._arrow.FixedSizeListArray.from_arrays(flat, tensor.shape[1])

    def _tensor(self, column: Any) -> torch.Tensor:
        width = self._width(column.type)
        flat = column.flatten() if width else column
        return torch.from_numpy(flat.to_numpy(zero_copy_only=False).copy()).view(len(column), *width)

    def _width(self, kind: Any) -> tuple[int, ...]:
        return (kind.list_size,) if self._arrow.types.is_fixed_size_list(kind) else ()


_FORMATS: Final[Mapping[str, type[Safetensors | Parquet]]] = {"safetensors": Safetensors, "parquet": Parquet}


class ExportFolder:
    """The folder that a program writes an export into. Its methods block. What a killed program has left is known by
    the file `UNFINISHED` that nobody has locked, and the next export removes it."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._made: list[Path] = []
        self._descriptor = -1

    def take(self) -> None:
        """Makes the folder, or removes what an export has left in it that was killed. Raises `InvalidArgumentError` if
        it has other files, or another export writes into it, and `OSError` if it cannot be made."""
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


class PartsWriter:
    """Writes the rows of a table into several files in a folder, as `ExportFolder`. Its methods block. All files have
    the mode of new files, which the umask decides (usually 0644): an export is read by other programs and users, unlike
    a checkpoint (0600). `optimizer` is the kind of the optimizer whose state is written; empty for none."""

    def __init__(
        self,
        folder: Path,
        format: Format,
        name: str,
        dim: int,
        dtype: torch.dtype,
        optimizer: str,
        part_bytes: int = _PART_BYTES,
    ) -> None:
        self._folder: Final = folder
        self._parts: Final = _parts(format)
        self._list: dict[str, Any] = {
            **{"version": _VERSION, "table": name, "dim": dim, "dtype": str(dtype).removeprefix("torch.")},
            **{"optimizer": optimizer, "format": format, "rows": 0, "parts": []},
        }
        self._part_bytes: Final = part_bytes
        self._waiting: list[Block] = []
        self._bytes = 0
        # The methods may be called by several threads: `discard` also while another one writes.
        self._lock: Final = ReportingLock()
        self._target: Final = ExportFolder(folder)
        self._discarded = False

    def begin(self) -> None:
        """Makes the folder, or removes what an export has left in it that was killed. Raises as `ExportFolder.take`."""
        with self._lock:
            if not self._discarded:
                self._target.take()

    def add(self, block: Block) -> None:
        """Adds rows. Raises `OSError` if a file cannot be written."""
        with self._lock:
            if self._discarded:
                return
            self._waiting.append(block)
            self._bytes += sum(each.nbytes for each in block.values())
            if self._bytes >= self._part_bytes:
                self._write()

    def finish(self) -> int:
        """Writes what is left, and the list. Returns the number of rows. Raises `OSError`."""
        with self._lock:
            if not self._discarded:
                if self._waiting:
                    self._write()
                text = json.dumps(self._list, indent=1) + "\n"
                self._replace(self._folder / LIST, lambda path: path.write_text(text))
                self._target.release()
            return int(self._list["rows"])

    def discard(self) -> None:
        """Removes what it has written, unless it has finished. What is called afterwards does nothing. Raises `OSError`
        if a file cannot be removed. The next export into this folder does that."""
        with self._lock:
            self._discarded, self._waiting = True, []
            self._target.discard()

    def _write(self) -> None:
        names = self._waiting[0].keys()
        block = {name: torch.cat([each[name] for each in self._waiting]) for name in names}
        self._waiting, self._bytes = [], 0
        path = self._folder / f"rows-{len(self._list['parts']) + 1:05}.{self._list['format']}"
        digest = self._replace(path, lambda new: self._parts.write(new, block))
        self._list["parts"].append({"file": path.name, "rows": len(block["ids"]), "sha256": digest})
        self._list["rows"] += len(block["ids"])

    @staticmethod
    def _replace(path: Path, write: Any) -> str:
        """Writes a file that is there as a whole or not at all. Returns its hash."""
        new = path.with_name(f".{path.name}")
        write(new)
        with new.open("rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        new.rename(path)
        return digest


class PartsReader:
    """Reads what a `PartsWriter` has written. Its methods block."""

    def __init__(self, folder: Path) -> None:
        try:
            with open_regular(folder / LIST) as file:
                told = json.loads(file.read())
            if told["version"] != _VERSION:
                raise InvalidArgumentError(f"{folder} was written by a later version of this package")
            self._dim = int(told["dim"])
            self._optimizer = str(told["optimizer"])
            # Exports of earlier versions have no hashes.
            self._files = [
                (folder / Path(each["file"]).name, int(each["rows"]), each.get("sha256")) for each in told["parts"]
            ]
            format = str(told["format"])
        except FileNotFoundError:
            why = "it is no export of a table, or not a whole one"
            if (folder / UNFINISHED).exists():
                why = "its export goes on, or its program was killed"
            raise InvalidArgumentError(f"{folder} has no {LIST}: {why}") from None
        except NotRegularError as error:
            raise InvalidArgumentError(str(error)) from None
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{folder / LIST} is not the list of an export: {error!r}") from None
        self._folder = folder
        self._parts = _parts(format)

    def check(self, dim: int, optimizer: str | None) -> None:
        """Raises `InvalidArgumentError` if the files do not fit the table; without state, `optimizer` is None."""
        if self._dim != dim:
            raise InvalidArgumentError(f"{self._folder} has rows of {self._dim} numbers, and the table of {dim}")
        if optimizer is not None and self._optimizer not in ("", optimizer):
            raise InvalidArgumentError(
                f"{self._folder} has the state of {self._optimizer!r}, and the table has {optimizer!r}: restore with "
                "state=False to take the rows alone"
            )
        for path, rows, expected in self._files:
            try:
                with open_regular(path) as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                shapes = self._parts.shapes(path)
            except Exception as error:  # the libraries have errors of their own
                raise InvalidArgumentError(f"{path} cannot be read: {error}") from None
            if expected not in (None, digest):
                raise InvalidArgumentError(f"{path} is damaged: it has other bytes than the export has written")
            whole = all(shape[:1] == (rows,) for shape in shapes.values())
            if not whole or shapes.get("ids") != (rows,) or shapes.get("values") != (rows, dim):
                raise InvalidArgumentError(f"{path} has {shapes}, not {rows} rows of {dim} numbers with their ids")

    def blocks(self, rows: int, state: bool) -> Iterator[Block]:
        """All rows, at most so many at a time; `state` says whether what the optimizer keeps is wanted."""
        for path, *_ in self._files:
            for block in self._parts.read(path, rows):
                yield {name: each for name, each in block.items() if state or not name.startswith("state.")}


def _parts(format: str) -> Safetensors | Parquet:
    if format not in _FORMATS:
        raise InvalidArgumentError(f'the format of an export is "safetensors" or "parquet", not {format!r}')
    return _FORMATS[format]()
