"""What a data directory holds, read without making anything of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ps_service.durability.described import tensors_of
from ps_service.durability.keys import SignatureError
from ps_service.durability.manifest import DamagedError, Manifest
from ps_service.durability.store import CheckpointError, checkpoints_in, parsed
from ps_wire.tables.names import BLOCKS, SHARD

if TYPE_CHECKING:
    from ps_service.durability.keys import Keys
    from ps_wire.v1 import checkpoint_pb2 as pb


@dataclass(frozen=True, slots=True)
class InspectedObject:
    """An object of a checkpoint, with the bytes of its tensors; `name` is empty for an anonymous one. `version` counts
    the steps of an optimizer, and `rows` those of a table; otherwise they are None."""

    name: str
    class_name: str
    nbytes: int
    tensors: int
    version: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Inspected:
    """A checkpoint. `damage` says what is wrong with it, and is empty if every hash is right. The rest is known if its
    manifest could be read; objects and sessions, if all of it could. `left_out` has name, class and reason of what the
    owner could not save. The log goes on at the `position`. `untrusted` says that it is not signed, although it has to
    be; then nothing of it was read."""

    folder: Path
    damage: str
    owner: str = ""
    release: str = ""
    written: str = ""
    age_seconds: float = math.nan
    nbytes: int = 0
    objects: Sequence[InspectedObject] = ()
    sessions: int = 0
    answers: int = 0
    position: int = 0
    left_out: Sequence[dict[str, str]] = field(default_factory=list)
    untrusted: bool = False


def inspect(folder: Path, keys: Keys | None = None) -> list[Inspected]:
    """The checkpoints of a data directory, newest first; with keys they have to be signed. Raises `CheckpointError` if
    it cannot be read."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no data directory: there is no such folder")
    return [_inspected(each, keys) for each in checkpoints_in(folder)]


def _inspected(folder: Path, keys: Keys | None) -> Inspected:
    damage = ""
    try:
        manifest = Manifest.read(folder, keys=keys)
    except SignatureError as error:
        return Inspected(folder, str(error), untrusted=True)
    except DamagedError as error:
        damage = str(error)
        try:
            manifest = Manifest.read(folder, verify=False)
        except ValueError:
            return Inspected(folder, damage)
    except ValueError as error:  # of another release
        return Inspected(folder, str(error))
    known: dict[str, Any] = {
        "owner": manifest.owner,
        "release": manifest.version,
        "written": manifest.written,
        "age_seconds": (datetime.now(UTC) - datetime.fromisoformat(manifest.written)).total_seconds(),
        "nbytes": sum(each["bytes"] for each in manifest.files.values()),
        "left_out": manifest.left_out,
    }
    if damage:
        return Inspected(folder, damage, **known)
    checkpoint = parsed(folder)
    return Inspected(
        folder,
        damage,
        **known,
        objects=[_object(each) for each in checkpoint.objects],
        sessions=len(checkpoint.sessions),
        answers=sum(len(each.answers) for each in checkpoint.sessions),
        position=checkpoint.position,
    )


def _object(record: pb.ObjectRecord) -> InspectedObject:
    tensors = list(tensors_of(record.state)) + list(tensors_of(record.value))
    version = record.version if record.HasField("optimizer") else None
    return InspectedObject(
        record.name, record.class_name, sum(each.nbytes for each in tensors), len(tensors), version, _rows(record)
    )


def _rows(record: pb.ObjectRecord) -> int | None:
    """The number of rows, if it is a table: its state has blocks, and each of them has the ids of its rows."""
    if record.class_name != SHARD:
        return None
    blocks = next(each.value for each in record.state.dict.items if each.key.text == BLOCKS)
    columns = (column for block in blocks.list.items for column in block.dict.items)
    return sum(column.value.tensor.shape[0] for column in columns if column.key.text == "ids")
