"""Keeper: gives an owner its state from the data directory, and writes it back there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ps_service.durability import snapshot
from ps_service.durability.restoring import restore
from ps_service.durability.store import Store
from ps_wire.runtime.threads import BLOCKING

if TYPE_CHECKING:
    from ps_service.durability.manifest import Manifest
    from ps_service.engine import Engine

_log = logging.getLogger(__name__)


class Keeper:
    """Keeps the state of one owner.

    Args:
        engine: The owner, which hosts nothing yet; it is told that it is durable.
        folder: The data directory.

    Raises:
        CheckpointError: The directory cannot be used.
    """

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self._store = Store(folder)
        engine.durable = True

    def resume(self) -> None:
        """Gives the owner the state of the newest checkpoint, if there is one.

        Raises:
            CheckpointError: It cannot be started from.
        """
        newest = self._store.newest()
        name = self._engine.name
        if newest is None:
            _log.info("%s begins with nothing; its state will be kept in %s", name, self._store.folder)
            return
        folder, manifest = newest
        restore(self._engine, folder, manifest)
        hosted, sessions = len(self._engine.registry), len(self._engine.sessions)
        _log.info("%s goes on from %s of %s: %d objects, %d sessions", name, folder, manifest.written, hosted, sessions)

    async def keep(self, orderly: bool) -> None:
        """Writes a checkpoint. Nothing is taken up any more, and everything that was has an answer.

        Args:
            orderly: Whether nothing is running; else code may hold what is waited for, and that is left out.

        Raises:
            CheckpointError: It cannot be written.
        """
        books = snapshot.bookkeeping(self._engine)
        folder, manifest = await BLOCKING.run(self._write, books, orderly)
        _log.info("the state of %s is kept in %s", self._engine.name, folder)
        for each in manifest.left_out:
            _log.warning("%s %r is not kept: %s", each["class"], each["name"], each["why"])

    def close(self) -> None:
        """Lets others use the directory."""
        self._store.close()

    def _write(self, books: snapshot.Bookkeeping, orderly: bool) -> tuple[Path, Manifest]:
        return self._store.write(lambda folder: snapshot.write(self._engine, books, folder, orderly))
