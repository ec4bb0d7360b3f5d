"""The newest checkpoint of one owner, which is read and not changed."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from ps_service.durability.manifest import NAME, DamagedError, Manifest
from ps_service.durability.restoring import parsed
from ps_service.durability.store import CheckpointError, Store
from ps_service.durability.tensors import TensorReader


class Source:
    """The newest checkpoint of one owner, given by its data directory, or any checkpoint, given by its own folder.

    The owner cannot start until it is closed, and must not run.
    """

    def __init__(self, path: Path) -> None:
        self._store: Store | None = None
        try:
            self.folder: Final = self._found(path)
            manifest = Manifest.read(self.folder)
            self.owner: Final = manifest.owner
            self.written: Final = datetime.fromisoformat(manifest.written)
            self.checkpoint: Final = parsed(self.folder)
            self.tensors: Final = TensorReader(self.folder, manifest.files)
        except BaseException as error:
            self.close()
            if isinstance(error, DamagedError):
                raise CheckpointError(
                    f"{error}: restore that directory from a backup. An older checkpoint in it can be given by its own "
                    "folder, together with those of the other owners of that time"
                ) from error
            if isinstance(error, (ValueError, DecodeError)):
                raise CheckpointError(str(error)) from error
            raise

    def _found(self, path: Path) -> Path:
        if (path / NAME).is_file():
            return path
        if not path.is_dir():
            raise CheckpointError(f"there is no directory {path}: give the data directory of each owner")
        self._store = Store(path)
        newest = self._store.newest_folder()
        if newest is None:
            raise CheckpointError(
                f"{path} has no checkpoint: give the data directory of each owner, once it has stopped"
            )
        return newest

    def close(self) -> None:
        """Lets the owner start again."""
        if self._store is not None:
            self._store.close()
