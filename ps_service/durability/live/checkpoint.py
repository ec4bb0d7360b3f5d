"""Writes the checkpoint of an owner with a log, while requests go on.

Sessions and other books, the options of optimizers and their schedulers are as at one position of the log, where replay
begins. Parameters, with what optimizers keep for them, follow piece by piece, each as at a later position, which the
checkpoint names (see `log/newer.py`). Everything else is logged as a whole when it changes, so it may be read at any
time after the beginning: replay sets it again. So are steps of the rows of tables meanwhile, and else as gradients.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from ps_service.durability import books, prepared_steps
from ps_service.durability.live.begin import begin, module_state
from ps_service.durability.live.part_writing import MadeMeanwhileError, PartWriter
from ps_service.durability.live.quiescence import PATIENCE_SECONDS, Quiescence
from ps_service.durability.live.reuse import Earlier, Reused
from ps_service.durability.live.slots import SlottedStorage
from ps_service.durability.live.table_writing import write_table
from ps_service.durability.live.tensor_files import Names, TensorFiles
from ps_service.durability.object_records import Records
from ps_service.durability.object_states import live_state_of
from ps_service.durability.store import finished
from ps_service.durability.value_files import BLOCKS
from ps_service.training.copies import copied
from ps_service.training.no_steps import StillBusy

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from ps_service.durability.live.begin import Beginning, OnLoop
    from ps_service.durability.log.disk import Disk
    from ps_service.durability.log.owners_log import OwnersLog
    from ps_service.durability.manifest import Manifest
    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject

_ATTEMPTS: Final = 3


class LiveCheckpoint:
    """One checkpoint. Once it is complete, `position` is that of the log at which it begins. Requests that change
    something have waited at most `longest` seconds at a time."""

    def __init__(self, engine: Engine, log: OwnersLog, on_loop: OnLoop, earlier: Earlier, disk: Disk) -> None:
        self._engine = engine
        self._log = log
        self._on_loop = on_loop
        self._earlier = earlier
        self._disk = disk
        self._still = Quiescence(log)
        self._reused = Reused(earlier)
        self.position = 0

    @property
    def longest(self) -> float:
        """See the class."""
        return self._still.longest

    def write(self, folder: Path) -> Manifest:
        """Writes it into an empty folder. Raises `StillBusy`, `PsError` and `OSError`."""
        for _ in range(_ATTEMPTS):
            try:
                return _last(self.turns(folder))
            except MadeMeanwhileError:
                for path in folder.iterdir():
                    path.unlink()
        raise StillBusy("optimizers were made again and again while it was written, for parameters that others have")

    def turns(self, folder: Path) -> Generator[None, None, Manifest]:
        """Does what `write` does in turns, between which anything may happen. Its value is the manifest. Raises
        `MadeMeanwhileError` if it has to begin again."""
        with self._log.with_images():
            return (yield from self._turns(folder))

    def _turns(self, folder: Path) -> Generator[None, None, Manifest]:
        names = Names(name for each in self._earlier.written.values() for name in each.names())
        files = TensorFiles(folder, self._disk, names)
        storage = SlottedStorage(files)
        beginning = begin(self._engine, self._still, self._on_loop)
        yield
        checkpoint = beginning.books.message
        books.add_answers(beginning.books, files)
        records = Records(
            storage,
            lambda hosted: self._state(hosted, beginning),
            lambda optimizer: beginning.rounds[optimizer.number],
            lambda hosted: beginning.steps[hosted.ref.object_id],
        )
        kept = records.records(beginning.objects)
        prepared_steps.write_all(beginning.prepared, checkpoint, storage)
        files.flush()
        yield
        reused = self._reused = Reused(self._earlier)
        there = {each.object_id for each in kept}
        for hosted, slot in storage.tables:
            if hosted.ref.object_id in there:
                object_id = hosted.ref.object_id
                ids, now = beginning.ids[object_id], beginning.tables[object_id]["time"]
                yield from write_table(object_id, hosted.value.shard, ids, now, slot, files, reused)
        parts = PartWriter(self._engine, self._still, files, storage, reused)
        yield from parts.write(beginning, there)
        checkpoint.objects.extend(kept)
        checkpoint.runs.extend(beginning.runs)
        checkpoint.pieces.extend(parts.pieces)
        checkpoint.whole = self._log.log.end
        # It is of no use without the log up to there.
        self._log.log.sync()
        self.position = beginning.position
        incarnations = books.continued(self._engine)
        manifest = finished(folder, checkpoint, self._engine.name, incarnations, records.left_out)
        manifest.files.update(reused.linked)
        return manifest

    def completed(self, folder: Path, manifest: Manifest) -> Earlier:
        """What the next checkpoint may use of this one, which is complete in a folder."""
        return Earlier(folder, manifest.files, self._reused.written)

    def _state(self, hosted: HostedObject, beginning: Beginning) -> Any:
        """The state of an object, with parts in the place of what is read later."""
        object_id = hosted.ref.object_id
        if (read := beginning.states.get(object_id)) is not None:
            return read.result()
        if hosted.is_table:
            return {**beginning.tables[object_id], BLOCKS: hosted}
        if hosted.is_module:
            return module_state(hosted, beginning.parts)
        lock = self._log.lock_of(hosted)
        if not lock.acquire(seconds=PATIENCE_SECONDS):
            raise StillBusy(f"the state of {hosted} could not be read, because hosted code is running in it")
        try:
            return copied(live_state_of(self._engine, time.monotonic() + PATIENCE_SECONDS, hosted))
        finally:
            lock.release()


def _last(turns: Generator[None, None, Manifest]) -> Manifest:
    """The value of a generator, after all of its turns."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            manifest: Manifest = end.value
            return manifest
