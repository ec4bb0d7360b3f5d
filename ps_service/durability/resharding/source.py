"""The newest state of one owner, which is read and not changed, and its objects by what becomes of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from ps_service.durability.log.disk import Disk
from ps_service.durability.log.segments import Segments
from ps_service.durability.manifest import NAME, DamagedError, Manifest
from ps_service.durability.store import CheckpointError, Store, checkpoints_in, parsed
from ps_service.durability.tensors import TensorReader
from ps_wire.codec.messages import messages_in
from ps_wire.tables import names
from ps_wire.v1.values_pb2 import Handle

if TYPE_CHECKING:
    from ps_service.durability.keys import Keys
    from ps_wire.v1 import checkpoint_pb2 as pb

_log = logging.getLogger(__name__)

Rebuild = Callable[[Path, Path], object]
"""Applies the log in a data directory, which no owner can use meanwhile, to its newest checkpoint; the result is the
checkpoint of another, empty data directory."""


class Source:
    """The newest state of one owner, given by its data directory, or a checkpoint, given by its own folder.

    If the log has more than the newest checkpoint, `rebuild` applies it in a temporary folder, which it makes in
    `space`. The owner cannot start until it is closed, and must not run. With `keys`, it has to be signed. A checkpoint
    that needs the log, because something changed while it was written, is refused by its own folder.
    """

    def __init__(
        self, path: Path, rebuild: Rebuild | None = None, space: Path | None = None, keys: Keys | None = None
    ) -> None:
        self._store: Store | None = None
        self._temporary: TemporaryDirectory[str] | None = None
        try:
            folder = self._found(path)
            manifest = self._manifest_of(path, folder, keys, rebuild is not None)
            written = None if manifest is None else datetime.fromisoformat(manifest.written)
            position = 0 if folder is None or manifest is None else parsed(folder).position
            if self._store is not None and (changed := _end_of_log(path, position)) is not None:
                if rebuild is None:
                    raise CheckpointError(
                        f"{path} has a log behind its newest checkpoint: start its owner once, and stop it in order, "
                        "so that the checkpoint has everything"
                    )
                self._temporary = TemporaryDirectory(prefix=".ps-restore-", dir=space)
                data_dir = Path(self._temporary.name, "data")
                rebuild(path, data_dir)
                (folder,), written = checkpoints_in(data_dir), changed
                manifest = Manifest.read(folder, keys=keys)
            if folder is None or manifest is None or written is None:
                raise CheckpointError(
                    f"{path} has no checkpoint: give the data directory of each owner, once it has stopped"
                )
            self.folder: Final = folder
            self.owner: Final = manifest.owner
            self.written: Final = written
            self.checkpoint: Final = parsed(folder)
            if self._temporary is None:
                _check_one_moment(folder, self.checkpoint)
            self.tensors: Final = TensorReader(folder, manifest.files)
        except BaseException as error:
            self.close()
            if isinstance(error, DamagedError):
                raise CheckpointError(
                    f"{error}: restore that directory from a backup. An older checkpoint in it can be given by its own "
                    "folder, if nothing changed while it was written, together with those of the other owners of that "
                    "time"
                ) from error
            if isinstance(error, (ValueError, DecodeError)):
                raise CheckpointError(str(error)) from error
            raise

    def _found(self, path: Path) -> Path | None:
        if (path / NAME).is_file():
            return path
        if not path.is_dir():
            raise CheckpointError(f"there is no directory {path}: give the data directory of each owner")
        self._store = Store(path)
        return self._store.newest_folder()

    def _manifest_of(self, path: Path, folder: Path | None, keys: Keys | None, can_rebuild: bool) -> Manifest | None:
        """The manifest of a checkpoint; None if it is damaged, and an older one continued by the log takes its place.
        Raises `DamagedError` if none can."""
        if folder is None:
            return None
        try:
            return Manifest.read(folder, keys=keys)
        except DamagedError as error:
            if self._store is None or not can_rebuild or not Segments(path, Disk()).used:
                raise
            _log.warning("%s; the one before it and the log are used", error)
            return None

    def close(self) -> None:
        """Lets the owner start again."""
        if self._temporary is not None:
            self._temporary.cleanup()
        if self._store is not None:
            self._store.close()


def _check_one_moment(folder: Path, checkpoint: pb.Checkpoint) -> None:
    """Raises `CheckpointError` if parts of a checkpoint are later than others: only the log tells what is between."""
    if checkpoint.running and checkpoint.whole != checkpoint.position:
        raise CheckpointError(
            f"{folder} was written while its owner changed, so it needs the log: give the data directory, or the one "
            "that ps-service replay makes of it"
        )


def _end_of_log(path: Path, position: int) -> datetime | None:
    """When the log was written last, if it has something behind a position; None if it has not."""
    segments = Segments(path, Disk())
    if next(segments.records(max(position, segments.used[0].start) if segments.used else 0), None) is None:
        return None
    return datetime.fromtimestamp(segments.used[-1].path.stat().st_mtime, UTC)


def request_of(record: pb.ObjectRecord) -> Any:
    """The request that an object is made from; None for a value."""
    kind = record.WhichOneof("made")
    return None if kind in (None, "value") else getattr(record, kind)


@dataclass
class Moved:
    """What one owner knows of moves. `left` has by id the objects that are another owner's, which it had before;
    `copies` the ids of what it has of objects that still are another owner's. Of those in `coming`, that owner's
    checkpoint is not given, so nobody knows here whose they are. `runs` has what optimizers had applied elsewhere that
    have become its own, and that it has not accepted yet."""

    left: dict[str, pb.MoveEffect] = field(default_factory=dict)
    copies: set[str] = field(default_factory=set)
    runs: list[pb.RunRecord] = field(default_factory=list)
    coming: list[pb.MoveEffect] = field(default_factory=list)


@dataclass
class Objects:
    """The objects of one owner beside tables, each after what it was made with.

    `of_tables` are the optimizers and schedulers of tables, with the name of the table; `others` have names, or objects
    with names were made with them. `left_out` counts the rest: trainers, which have them, begin anew. Copies of objects
    that are moving and still another owner's, as `moved` says, are none of these.
    """

    source: Source
    moved: Moved
    of_tables: list[tuple[pb.ObjectRecord, str]] = field(default_factory=list)
    others: list[pb.ObjectRecord] = field(default_factory=list)
    left_out: int = 0

    @property
    def named(self) -> list[str]:
        """Names of the other objects."""
        return [record.name for record in self.others if record.name]

    @property
    def runs(self) -> list[pb.RunRecord]:
        """What optimizers among the other objects had applied of passes that may be run again."""
        ids = {record.object_id for record in self.others}
        return [each for each in (*self.source.checkpoint.runs, *self.moved.runs) if each.object_id in ids]

    @property
    def real(self) -> set[str]:
        """Ids of the other objects, without those of which nobody knows yet whether they have come."""
        coming = {each.object_id for effect in self.moved.coming for each in effect.objects}
        return {record.object_id for record in self.others} - coming


def objects_in(source: Source, moved: Moved) -> Objects:
    """Sorts the objects of a checkpoint, of whose owner it is known what has moved."""
    found = Objects(source, moved)
    by_id = {record.object_id: record for record in source.checkpoint.objects}
    table_of: dict[str, str] = {}
    plain: list[pb.ObjectRecord] = []
    for record in source.checkpoint.objects:
        if record.object_id in moved.copies:
            continue
        if record.class_name == names.SHARD:
            table_of[record.object_id] = record.name
            continue
        wanted = {table_of[used] for used in _used(record) if used in table_of}
        if not wanted:
            plain.append(record)
            continue
        made = record.WhichOneof("made")
        if len(wanted) > 1 or made not in ("optimizer", "scheduler") or not _used(record) <= table_of.keys():
            raise CheckpointError(
                f"{record.class_name} {record.name!r} of {source.owner} was made with {' and '.join(sorted(wanted))}, "
                "and cannot be moved: delete it before the owners are stopped, and make it again afterwards"
            )
        (table,) = wanted
        table_of[record.object_id] = table
        found.of_tables.append((record, table))
    kept: set[str] = set()
    for record in reversed(plain):
        if (record.name and not record.dependency_only) or record.object_id in kept:
            kept |= {record.object_id} | (_used(record) & by_id.keys())
    found.others = [record for record in plain if record.object_id in kept]
    found.left_out = len(plain) - len(found.others)
    return found


def _used(record: pb.ObjectRecord) -> set[str]:
    """Ids of the objects that an object was made with."""
    request = request_of(record)
    return set() if request is None else {handle.object_id for handle in messages_in(request, Handle)}
