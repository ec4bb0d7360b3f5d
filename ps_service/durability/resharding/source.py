"""The newest checkpoint of one owner, which is read and not changed, and its objects by what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from ps_service.durability.log.disk import Disk
from ps_service.durability.log.segments import Segments
from ps_service.durability.manifest import NAME, DamagedError, Manifest
from ps_service.durability.store import CheckpointError, Store, parsed
from ps_service.durability.tensors import TensorReader
from ps_service.requests.creation import messages_in
from ps_wire.tables import names
from ps_wire.v1.values_pb2 import Handle

if TYPE_CHECKING:
    from ps_wire.v1 import checkpoint_pb2 as pb


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
            if self._store is not None:
                self._check_log(path)
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

    def _check_log(self, path: Path) -> None:
        if next(Segments(path, Disk()).records(self.checkpoint.position), None) is not None:
            raise CheckpointError(
                f"{path} has a log behind its newest checkpoint: start its owner once, and stop it in order, so that "
                "the checkpoint has everything"
            )

    def close(self) -> None:
        """Lets the owner start again."""
        if self._store is not None:
            self._store.close()


def request_of(record: pb.ObjectRecord) -> Any:
    """The request that an object is made from; None for a value."""
    kind = record.WhichOneof("made")
    return None if kind in (None, "value") else getattr(record, kind)


@dataclass
class Objects:
    """The objects of one owner beside tables, each after what it was made with.

    `of_tables` are the optimizers and schedulers of tables, with the name of the table; `others` have names, or objects
    with names were made with them. `left_out` counts the rest: trainers, which have them, begin anew.
    """

    source: Source
    of_tables: list[tuple[pb.ObjectRecord, str]] = field(default_factory=list)
    others: list[pb.ObjectRecord] = field(default_factory=list)
    left_out: int = 0

    @property
    def named(self) -> list[str]:
        """Names of the other objects."""
        return [record.name for record in self.others if record.name]


def objects_in(source: Source) -> Objects:
    """Sorts the objects of a checkpoint."""
    found = Objects(source)
    by_id = {record.object_id: record for record in source.checkpoint.objects}
    table_of: dict[str, str] = {}
    plain: list[pb.ObjectRecord] = []
    for record in source.checkpoint.objects:
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
