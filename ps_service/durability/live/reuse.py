"""Files of the checkpoint before, which have what has not changed since."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping
    from pathlib import Path

    from ps_service.durability.live.parts import Mark
    from ps_service.durability.live.slots import Stored
    from ps_service.durability.live.tensor_files import TensorFiles


@dataclass
class Written:
    """What is in a file: values by a key, with the names of their tensors. The mark, or a hash, tells whether it has
    changed since."""

    mark: Mark | bytes
    file: str
    values: dict[Any, Stored] = field(default_factory=dict)

    def names(self) -> Iterator[str]:
        """The names of all tensors."""
        for each in self.values.values():
            yield from each.names


@dataclass
class Earlier:
    """The checkpoint that was written last: its folder, length and hash of its files, and what is in them."""

    folder: Path | None = None
    files: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    written: dict[Hashable, Written] = field(default_factory=dict)

    def link(self, name: str, path: Path) -> dict[str, Any] | None:
        """Gives a file another name in another folder. Returns its length and hash; None if that cannot be done."""
        if self.folder is None or name not in self.files:
            return None
        try:
            os.link(self.folder / name, path, follow_symlinks=False)
            if path.stat().st_size == self.files[name]["bytes"]:
                return self.files[name]
            path.unlink()
        except OSError:
            pass  # it was removed, or the file system has no links
        return None


@dataclass
class Reused:
    """What a checkpoint takes from the one before: `linked` has length and hash of files that are links to files of
    that, and `written` what is in files of the new one."""

    earlier: Earlier
    linked: dict[str, dict[str, Any]] = field(default_factory=dict)
    written: dict[Hashable, Written] = field(default_factory=dict)

    def link(self, key: Hashable, earlier: Written, files: TensorFiles) -> bool:
        """Uses a file of the checkpoint before. False if that cannot be done."""
        name = files.new_name()
        found = self.earlier.link(earlier.file, files.folder / name)
        if found is None:
            return False
        self.linked[name] = found
        self.written[key] = Written(earlier.mark, name, earlier.values)
        return True
