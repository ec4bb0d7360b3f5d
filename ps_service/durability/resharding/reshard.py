"""Reads the checkpoints of all owners, and writes those of their successors."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ps_service.durability.resharding.moved import moved_in, noted
from ps_service.durability.resharding.placement import Placement, Wanted, place
from ps_service.durability.resharding.records import Records, of_table, state_of
from ps_service.durability.resharding.source import Objects, Rebuild, Source, objects_in
from ps_service.durability.resharding.split_table import SplitTable, different_moments, tables_in
from ps_service.durability.store import APART_SECONDS, CheckpointError, Store, finished
from ps_service.durability.tensors import TensorWriter
from ps_wire.limits import MIB
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from ps_service.durability.keys import Keys
    from ps_service.durability.manifest import Manifest
    from ps_wire.v1.values_pb2 import Value

_PART_BYTES: Final = 64 * MIB
"""Bytes of a file of tensors, which is put together in memory."""


@dataclass
class Result:
    """What becomes of the checkpoints: numbers of rows by table and owner, and names of the other objects by owner.

    `left_out` counts objects without a name, of trainers. `folders` are the data directories that were written.
    """

    placement: Placement
    rows: dict[str, Counter[str]]
    objects: dict[str, list[str]]
    left_out: int
    folders: dict[str, Path] = field(default_factory=dict)


def reshard(
    given: Sequence[Path],
    to: Path,
    wanted: Wanted,
    *,
    dry_run: bool = False,
    apart: float = APART_SECONDS,
    rebuild: Rebuild | None = None,
    keys: Keys | None = None,
) -> Result:
    """Writes the checkpoints of new owners from those of others, which are given by data directory or folder.

    What the logs of data directories have since the checkpoints is applied by `rebuild`; without it, such a directory
    is refused. With `keys`, all that is read has to be signed with one of them, and what is written is.

    Optimizers and schedulers of a table are made on each of its owners, with options and states of before and the
    largest version. Other named objects go as they are to one owner, and one that was moving has one owner afterwards.
    What was applied of passes that may be run again is kept; sessions, passes and rounds are left out. In the folder
    `to` each new owner gets a data directory of its name. Memory holds some blocks of rows, and a file of tensors.
    Raises `CheckpointError`, and leaves nothing written, if something is damaged, does not fit, or was written more
    than `apart` seconds from the rest.
    """
    space = next(each for each in (to, *to.absolute().parents) if each.is_dir())
    with ExitStack() as stack:
        sources: dict[str, Source] = {}
        for path in given:
            source = stack.enter_context(closing(Source(path, rebuild, space, keys)))
            if (other := sources.setdefault(source.owner, source)) is not source:
                raise CheckpointError(f"{other.folder} and {source.folder} are both of owner {source.owner!r}")
        sources = dict(sorted(sources.items()))
        _check_times(sources, apart)
        tables = tables_in(sources)
        moved = moved_in(sources)
        objects = {owner: objects_in(source, moved[owner]) for owner, source in sources.items()}
        placement = place(wanted, objects, tables)
        move = _Move(tables, objects, placement)
        result = move.counted()
        if not dry_run:
            result.folders = move.write(to, keys)
        return result


def _check_times(sources: Mapping[str, Source], apart: float) -> None:
    if not sources:
        raise CheckpointError("give the data directory of at least one owner")
    ordered = sorted(sources.values(), key=lambda source: source.written)
    first, last = ordered[0], ordered[-1]
    if (seconds := (last.written - first.written).total_seconds()) > apart:
        raise different_moments(
            f"that of {first.owner!r} was written at {first.written:%Y-%m-%d %H:%M:%S}, and that of {last.owner!r} "
            f"{seconds:.0f} s later (--apart allows {apart:g})"
        )


class _Move:
    """Moves what some owners had to others."""

    def __init__(self, tables: Sequence[SplitTable], objects: Mapping[str, Objects], placement: Placement) -> None:
        self._tables = tables
        self._objects = objects
        self._placement = placement
        self._of_tables = {table.name: of_table(table, objects) for table in tables}
        self._moves = {owner: list(noted(owner, objects, placement.homes)) for owner in placement.owners}

    def counted(self) -> Result:
        """Counts the rows, and checks that they and everything else fit."""
        rows = {}
        for table in self._tables:
            counts = rows[table.name] = table.count(self._placement.routings[table.name])
            most = table.settings.get("max_rows")
            if most is not None and (above := [owner for owner, count in counts.items() if count > most]):
                raise CheckpointError(
                    f"table {table.name!r} may have {most:,} rows on an owner (max_rows), and would have "
                    f"{max(counts.values()):,} on {' and '.join(above)}: choose more owners"
                )
            for name, parts in self._of_tables[table.name].items():
                state_of(name, parts)
        named = {
            owner: sorted(n for before in self._of(owner) for n in before.named) for owner in self._placement.owners
        }
        return Result(self._placement, rows, named, sum(each.left_out for each in self._objects.values()))

    def _policies(self) -> dict[str, Value]:
        """The policies of optimizers over several owners, as the owner that decides has them."""
        return {
            record.name: record.policy
            for owner, own in self._objects.items()
            for record in own.others
            if record.name and record.HasField("policy") and list(record.rounds.owners)[:1] == [owner]
        }

    def write(self, to: Path, keys: Keys | None) -> dict[str, Path]:
        """Writes the data directories; removes them again if one cannot be written."""
        folders = {owner: to / owner for owner in self._placement.owners}
        for folder in folders.values():
            if folder.is_dir() and any(folder.iterdir()):
                raise CheckpointError(f"{folder} is not empty: choose another folder")
        done: list[Path] = []
        try:
            for owner, folder in folders.items():
                done.append(folder)
                with closing(Store(folder, keys=keys)) as store:
                    store.write(partial(self._fill, owner))
        except BaseException:
            for folder in done:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return folders

    def _of(self, owner: str) -> list[Objects]:
        """The owners of before whose other objects an owner gets."""
        return [self._objects[before] for before, home in self._placement.homes.items() if home == owner]

    def _fill(self, owner: str, folder: Path) -> Manifest:
        tensors = TensorWriter(folder, _PART_BYTES)
        records = Records(owner, self._placement.homes, self._policies(), tensors)
        checkpoint = pb.Checkpoint(moves=self._moves[owner])
        for before in self._of(owner):
            checkpoint.objects.extend(records.others(before))
            checkpoint.runs.extend(records.runs(before))
        for table in self._tables:
            routing = self._placement.routings[table.name]
            if owner in routing.owners:
                checkpoint.objects.extend(records.of_table(table, routing, self._of_tables[table.name]))
        if (same := self._objects.get(owner)) is not None:
            checkpoint.generator = same.source.checkpoint.generator
        tensors.flush()
        return finished(folder, checkpoint, owner)
