"""One version of an export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ps_reader.errors import ExportError
from ps_reader.safetensors_file import TensorFile, as_numbers
from ps_reader.tables import Overlay, Places, TableVersion, check_base, check_part

if TYPE_CHECKING:
    import numpy as np

    from ps_reader.layout import Manifest, TableFiles


class _Tables(dict[str, TableVersion]):
    """Tables by name. Its `KeyError` names those that there are."""

    def __missing__(self, name: str) -> TableVersion:
        raise KeyError(f"there is no table {name!r}; there are {', '.join(sorted(self)) or 'none'}")


class Version:
    """All tables and modules as they were at one version. It never changes, and stays readable after its files were
    removed. Any number of threads may use it.

    Attributes:
        number: Its number. Later ones are larger.
        export: The random name of the program that has written it. Another one that goes on has another name.
        as_of: Every step that was acknowledged before this time, in seconds since 1970, is part of it.
        tables: By name.
        files: All of its files, by name.
        overlays: By the name of a table, where the rows are that have changed since its base.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, known: Mapping[str, TensorFile], earlier: Version | None
    ) -> None:
        self.number = manifest.version
        self.export = manifest.export
        self.as_of = manifest.as_of
        self.files = {name: known.get(name) or self._open(folder / name) for name in sorted(manifest.files())}
        self._modules = {name: self.files[each.file] for name, each in manifest.modules.items()}
        self.overlays: dict[str, Overlay] = {}
        try:
            made = {name: self._table(name, files, earlier) for name, files in manifest.tables.items()}
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ExportError(f"version {self.number} does not fit its files: {error!r}") from None
        self.tables: Mapping[str, TableVersion] = MappingProxyType(_Tables(made))

    def _open(self, path: Path) -> TensorFile:
        try:
            return TensorFile(path)
        except FileNotFoundError:
            raise ExportError(f"version {self.number} lacks its file {path}: it has been removed") from None

    def _table(self, name: str, files: TableFiles, earlier: Version | None) -> TableVersion:
        over = None if earlier is None else earlier.overlays.get(name)
        parts = [self.files[each] for each in files.parts]
        if over is None or not over.is_of(files):
            check_base(files, parts, self.files[files.index])
            over = Overlay.empty(files)
        for number in range(len(over.parts), len(files.parts)):
            check_part(files, parts[number])
            over = over.with_part(files.parts[number], number, parts[number])
        self.overlays[name] = over
        return TableVersion(name, files, parts, Places(self.files[files.index], over))

    @property
    def modules(self) -> list[str]:
        """The names of its modules."""
        return sorted(self._modules)

    def state_dict(self, name: str) -> dict[str, np.ndarray]:
        """The parameters and buffers of a module, by the names that its `state_dict` has, as read-only arrays that
        share the pages of the file; those of bfloat16 are copies in float32. With torch,
        `load_state_dict({name: torch.tensor(each) for name, each in ....items()})` takes them.

        Raises `ExportError` if there is no such module, or numpy has no dtype for one of its tensors.
        """
        if name not in self._modules:
            raise ExportError(
                f"version {self.number} has no module {name!r}; it has {', '.join(self.modules) or 'none'}"
            )
        file = self._modules[name]
        for key in file.dtypes.keys() - file.arrays.keys():
            raise ExportError(f"{key} of module {name!r} is of the dtype {file.dtypes[key]}, which numpy does not have")
        return {key: as_numbers(each, file.dtypes[key]) for key, each in file.arrays.items()}

    def __repr__(self) -> str:
        return f"<Version {self.number} with {len(self.tables)} tables and {len(self._modules)} modules>"
