"""What the log in a data directory holds, read without making anything of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from ps_service.durability.keys import SignatureError
from ps_service.durability.log import records
from ps_service.durability.log.chain import Chain
from ps_service.durability.log.disk import Disk
from ps_service.durability.log.segments import DamagedLogError, Segments
from ps_service.durability.store import parsed
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from ps_service.durability.inspection import Inspected
    from ps_service.durability.keys import Keys
    from ps_service.durability.log.records import Record


@dataclass(slots=True)
class LoggedObject:
    """An object that records have made or changed, and how often. `version` counts the steps of an optimizer as of the
    end of the log; otherwise it is None."""

    name: str
    class_name: str
    changes: int = 0
    version: int | None = None


@dataclass(slots=True)
class InspectedLog:
    """The log behind the newest checkpoint that is whole: from which position to which, and how many records.

    `damage` says what is wrong with it, also with what older checkpoints need; it is empty if every checksum is right,
    and every signature if there are keys.
    `torn` says whether something follows that is not whole, and was not on the disk: it will be dropped. `nbytes` are
    those of its files, which were written `age_seconds` ago, and `owner` is its name, if the log has it.
    """

    begin: int
    end: int
    records: int = 0
    damage: str = ""
    torn: bool = False
    files: int = 0
    nbytes: int = 0
    age_seconds: float = 0.0
    owner: str = ""
    objects: Sequence[LoggedObject] = field(default_factory=list)


def inspect_log(folder: Path, found: Sequence[Inspected], keys: Keys | None = None) -> InspectedLog | None:
    """The log of a data directory with these checkpoints; None if it has none. An owner may append meanwhile."""
    used = Segments(folder, Disk()).used
    if not used:
        return None
    whole = [each for each in found if not each.damage]
    begin = whole[0].position if whole else 0
    log = InspectedLog(begin, begin, files=len(used), nbytes=sum(each.nbytes for each in used))
    log.age_seconds = max(time.time() - max(each.path.stat().st_mtime for each in used), 0.0)
    oldest = min(whole, key=attrgetter("position"), default=None)
    if oldest is not None and oldest.position < begin:
        for _ in _read(folder, oldest.position, begin, log, _chain(keys, folder, oldest)):
            pass
        if log.damage:
            log.damage += "; only older checkpoints need that part"
    objects = _Objects({} if not whole else _objects_in(whole[0].folder))
    for record in _read(folder, begin, None, log, _chain(keys, folder, whole[0] if whole else None)):
        log.end = record.end
        log.records += 1
        try:
            message = pb.LogRecord.FromString(record.message)
        except DecodeError as error:  # its checksum is right
            log.damage = f"the record at position {record.position} cannot be read: {error}"
            break
        log.owner = message.owner or log.owner
        objects.changed_by(message)
    log.objects = [each for each in objects.by_id.values() if each.changes]
    segments = Segments(folder, Disk())
    log.torn = not log.damage and any(
        records.begins_at(each.memory(), each.start, log.end - each.start)
        or next(records.later(each.memory(), each.start, max(log.end - each.start, 0)), None) is not None
        for each in segments.used
        if each.start <= log.end < each.start + each.nbytes
    )
    return log


def first_owner(folder: Path) -> str:
    """The name of the owner whose log begins in a folder; empty if the beginning is not there. Raises
    `DamagedLogError`."""
    first = next(Segments(folder, Disk()).records(0), None)
    return "" if first is None else pb.LogRecord.FromString(first.message).owner


def _chain(keys: Keys | None, folder: Path, checkpoint: Inspected | None) -> Chain | None:
    """Checks what follows a checkpoint, or the beginning, if there are keys."""
    if keys is None:
        return None
    if checkpoint is None:
        with suppress(DamagedLogError, DecodeError):
            return Chain(keys, first_owner(folder))
        return Chain(keys, "")
    chain = Chain(keys, checkpoint.owner)
    chain.follow(parsed(checkpoint.folder).code)
    return chain


def _read(folder: Path, begin: int, until: int | None, log: InspectedLog, chain: Chain | None) -> Iterator[Record]:
    """The records from a position on, up to another. Damage is noted."""
    position, is_again = begin, False
    while True:
        before = position
        try:
            for record in Segments(folder, Disk(), chain=chain).records(position):
                if until is not None and record.end > until:
                    return
                yield record
                position = record.end
        except DamagedLogError as error:
            # An owner that runs may have written what was not there yet, and more behind it.
            if position > before or not is_again:
                is_again = position == before
                continue
            log.damage = str(error)
        except SignatureError as error:
            log.damage = str(error)
        return


def _objects_in(checkpoint: Path) -> dict[str, LoggedObject]:
    return {each.object_id: _logged(each) for each in parsed(checkpoint).objects}


def _logged(record: pb.ObjectRecord) -> LoggedObject:
    version = record.version if record.HasField("optimizer") else None
    return LoggedObject(record.name, record.class_name, version=version)


class _Objects:
    """Objects by their ids, as records change them."""

    def __init__(self, by_id: Mapping[str, LoggedObject]) -> None:
        self.by_id = dict(by_id)

    def changed_by(self, message: pb.LogRecord) -> None:
        """Notes what a record changes."""
        for effect in message.effects:
            match effect.WhichOneof("kind"):
                case "object":
                    made = _logged(effect.object)
                    known = self.by_id.get(effect.object.object_id)
                    made.changes = 1 + (0 if known is None else known.changes)
                    self.by_id[effect.object.object_id] = made
                case "step":
                    stepped = self._known(effect.step.object_id)
                    stepped.version = effect.step.version
                case "rounds":
                    decided = self._known(effect.rounds.object_id)
                    decided.version = max(decided.version or 0, effect.rounds.version)
                case "buffers":
                    self._known(effect.buffers.object_id)
                case "unkept":
                    self.by_id.pop(effect.unkept, None)
                case "again" if effect.again.request.HasField("delete"):
                    name = effect.again.request.delete.name
                    self.by_id = {id: each for id, each in self.by_id.items() if each.name != name}

    def _known(self, object_id: str) -> LoggedObject:
        found = self.by_id.setdefault(object_id, LoggedObject("", ""))
        found.changes += 1
        return found
