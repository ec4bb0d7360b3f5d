"""What is in the folder of an export.

`latest.json` names the newest version. `version-N.json` is the manifest of a version: for each table the parts that
make up its rows, in order, and for each module its file. A manifest is there once all of its files are, and a file is
never changed: it is written in the folder `.unfinished`, and moved when it is whole. Manifests of old versions are
removed, and then the files that no other one has.

A part of a table is a file in the format of safetensors: `ids`, int64 [n]; `values`, [n, dim]; and `removed`, int64
[m], the ids whose rows have gone. Rows of later parts take the place of those of earlier ones. The first `base` parts
have an index of their rows: `ids`, int64 in ascending order, and for each the `place` of its row: the number of its
part times 2^40, and its row there. With `--parquet` there is for each part a file of the same name that ends in
`.parquet`, with the columns `id`, `removed` and `values`, which readers leave alone.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ps_reader.errors import ExportError

LAYOUT: Final = 1
"""Number of this layout. Readers refuse others."""

LATEST: Final = "latest.json"
PLACE_BITS: Final = 40

_FILE: Final = re.compile(r"[\w-][\w.-]*\.safetensors")
_MOST_TEXT: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one version of a table.

    `codec` is what has rounded the rows on their way, empty for nothing. `source` is what the owners had, by name, from
    which the next version goes on; `rows` counts the rows.
    """

    dim: int
    dtype: str
    codec: str
    parts: list[str]
    base: int
    index: str
    rows: int
    source: Mapping[str, list[int]]


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """The file of one version of a module: the tensors of its state, as safetensors. `owner` is where it was."""

    file: str
    class_name: str
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of an export.

    `export` is a random name of the program that has written it, and stands in the names of its files. `as_of` is a
    time in seconds since 1970: every step that was acknowledged before is part of it.
    """

    version: int
    export: str
    as_of: float
    written: float
    tables: dict[str, TableFiles] = field(default_factory=dict)
    modules: dict[str, ModuleFile] = field(default_factory=dict)

    def files(self) -> set[str]:
        """The names of all of its files."""
        of_tables = {name for each in self.tables.values() for name in (*each.parts, each.index) if name}
        return of_tables | {each.file for each in self.modules.values()}

    def to_json(self) -> str:
        """As a text."""
        return json.dumps({"layout": LAYOUT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """The manifest of such a text. Raises `ExportError` if it is none, or of another layout."""
        try:
            plain = json.loads(text)
            if plain.pop("layout") != LAYOUT:
                raise ExportError("it was written by another release of this package")
            tables = {name: TableFiles(**each) for name, each in plain.pop("tables").items()}
            modules = {name: ModuleFile(**each) for name, each in plain.pop("modules").items()}
            version, export = int(plain["version"]), str(plain["export"])
            made = cls(version, export, float(plain["as_of"]), float(plain["written"]), tables, modules)
            if strange := [name for name in made.files() if not _FILE.fullmatch(name)]:
                raise ValueError(f"{strange[0]!r} is no file of an export")
            return made
        except ExportError:
            raise
        except Exception as error:  # it may be anything
            raise ExportError(f"it is no manifest of an export: {error!r}") from None


def manifest_path(folder: Path, version: int) -> Path:
    """Where the manifest of a version is."""
    return folder / f"version-{version}.json"


def versions(folder: Path) -> list[int]:
    """The versions of which there is a manifest, in ascending order."""
    names = (path.name.removeprefix("version-").removesuffix(".json") for path in folder.glob("version-*.json"))
    return sorted(int(each) for each in names if each.isdecimal())


class Latest(NamedTuple):
    """The newest version, the name of what has written it, and a time at which it still was what the owners had."""

    version: int
    export: str
    as_of: float

    def to_json(self) -> str:
        """As a text."""
        return json.dumps({"layout": LAYOUT, **self._asdict()}) + "\n"


def latest(folder: Path) -> Latest:
    """What is newest in a folder. Raises `ExportError` if there is nothing."""
    try:
        told = json.loads(_text_of(folder / LATEST))
        return Latest(int(told["version"]), str(told["export"]), float(told["as_of"]))
    except FileNotFoundError:
        what = "has no export yet" if folder.is_dir() else "is no folder that is there"
        raise ExportError(f"{folder} {what}: ps-service export writes one") from None
    except Exception as error:  # it may be anything
        raise ExportError(f"{folder / LATEST} cannot be read: {error!r}") from None


def read_manifest(folder: Path, version: int) -> Manifest:
    """The manifest of a version. Raises `ExportError` if it is not there."""
    path = manifest_path(folder, version)
    try:
        text = _text_of(path)
    except FileNotFoundError:
        there = ", ".join(map(str, versions(folder))) or "none"
        raise ExportError(f"{folder} has no version {version}; it has {there}") from None
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be read: {error}") from None
    try:
        return Manifest.from_json(text)
    except ExportError as error:
        raise ExportError(f"{path} cannot be read: {error}") from None


def _text_of(path: Path) -> str:
    """What a regular file says. Raises `OSError` and `ValueError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        return file.read(_MOST_TEXT)
