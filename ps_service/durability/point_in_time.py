"""Builds a state that an owner had before, from its data directory, which is read and not changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ps_service.durability import writing
from ps_service.durability.keys import SignatureError
from ps_service.durability.log.chain import Chain
from ps_service.durability.log.disk import Disk
from ps_service.durability.log.newer import Newer
from ps_service.durability.log.replaying import replay
from ps_service.durability.log.segments import DamagedLogError, Segments
from ps_service.durability.log_inspection import first_owner
from ps_service.durability.manifest import DamagedError, Manifest
from ps_service.durability.restoring import put, restore
from ps_service.durability.store import CheckpointError, Store, checkpoints_in, held_still, parsed
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.errors import PsError

if TYPE_CHECKING:
    from ps_service.durability.keys import Keys
    from ps_service.durability.log.records import Record
    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject
    from ps_wire.v1 import checkpoint_pb2 as pb

ONLY: Final = ""
"""Stands for the only optimizer of an owner."""

MakeEngine = Callable[[str, Path], "Engine"]
"""Makes an owner of that name and with that data directory, which hosts nothing yet."""


class Moment(NamedTuple):
    """The first moment at which optimizers, by their names or ids, had these versions; or up to a position of the log.
    If neither is given, it is the latest."""

    versions: Mapping[str, int] = {}
    position: int | None = None


@dataclass
class BuiltState:
    """What was built: from which checkpoint, if any, with how many records of the log, up to which position of it, the
    versions of optimizers by name, and how many objects without a name were left out."""

    owner: str
    checkpoint: str
    records: int
    position: int
    versions: dict[str, int] = field(default_factory=dict)
    left_out: int = 0


class _Begin(NamedTuple):
    """A checkpoint, and the position where the log follows it; or None and the beginning of the log. `until` is the
    position of the next checkpoint that may have more than the log up to there; None if there is none. One that was
    written while trainers went on has some parts as at later positions, up to the one where it is `whole`. `code` is
    that of the record before the position, if the log is signed."""

    folder: Path | None
    owner: str
    position: int
    versions: Mapping[str, int]
    until: int | None
    whole: int
    code: bytes


class _InPartError(Exception):
    """A checkpoint has a part of what it has as it was later than the moment."""


def build(folder: Path, moment: Moment, output: Path, make: MakeEngine, keys: Keys | None = None) -> BuiltState:
    """Writes the named objects of an owner, as they were at a moment, as a checkpoint into a new data directory.

    The checkpoint belongs to the owner of the same name; it has no sessions. With keys, all that is read has to be
    signed with one of them, and the checkpoint is. Raises `CheckpointError` if an owner uses
    the directory, if it has not kept that moment, or if what it has is damaged or cannot be made again.
    """
    with held_still(folder):
        return build_held(folder, moment, output, make, keys)


def build_held(folder: Path, moment: Moment, output: Path, make: MakeEngine, keys: Keys | None = None) -> BuiltState:
    """As `build`, of a data directory that no owner can use meanwhile."""
    if output.is_dir() and any(output.iterdir()):
        raise CheckpointError(f"{output} is not empty: choose another folder")
    for begin in _before(folder, moment, keys):
        engine = make(begin.owner, output)
        try:
            built = _built(engine, folder, begin, moment, keys)
            with closing(Store(output, keys=keys)) as store:
                store.write(lambda growing, engine=engine: writing.write_live(engine, growing)[0])  # type: ignore[misc]
            return built
        except _InPartError:
            whole = begin.whole
        finally:
            engine.close()
    raise CheckpointError(
        f"{folder} has kept that moment in part: its oldest checkpoint was written while trainers went on, and is "
        f"whole from position {whole} of the log on"
    )


def _before(folder: Path, moment: Moment, keys: Keys | None) -> list[_Begin]:
    """The checkpoints before the moment, the newest first."""
    begins = list(_begins(folder, keys))
    if not begins:
        raise CheckpointError(f"{folder} has neither a checkpoint that is whole nor the beginning of a log")
    if found := [each for each in begins if not _is_later(each, moment)]:
        return found
    oldest = begins[-1]
    if moment.position is not None and moment.position < oldest.position:
        raise CheckpointError(
            f"{folder} has kept nothing before position {oldest.position} of the log, of its oldest checkpoint"
        )
    told = " and ".join(f"version {version} of {name!r}" for name, version in sorted(oldest.versions.items()))
    raise CheckpointError(f"{folder} has kept nothing before its oldest checkpoint, which has {told}")


def _begins(folder: Path, keys: Keys | None) -> Iterator[_Begin]:
    """Where the state of an owner can be built from, the newest first."""
    until: int | None = None
    for each in checkpoints_in(folder):
        try:
            manifest = Manifest.read(each, keys=keys)
        except DamagedError:
            continue
        except ValueError as error:  # of another release, or not signed
            raise CheckpointError(str(error)) from error
        checkpoint = parsed(each)
        versions = _versions_in(checkpoint)
        yield _Begin(each, manifest.owner, checkpoint.position, versions, until, checkpoint.whole, checkpoint.code)
        if not checkpoint.running:
            until = checkpoint.position
    segments = Segments(folder, Disk())
    if segments.used and segments.used[0].start == 0 and (owner := first_owner(folder)):
        yield _Begin(None, owner, 0, {}, until, 0, b"")


def _versions_in(checkpoint: pb.Checkpoint) -> dict[str, int]:
    found = [each for each in checkpoint.objects if each.HasField("optimizer")]
    return {each.name or each.object_id: each.version for each in found}


def _is_later(begin: _Begin, moment: Moment) -> bool:
    if moment.position is not None and begin.position > moment.position:
        return True
    versions = dict(begin.versions)
    if ONLY in moment.versions and len(versions) == 1:
        versions[ONLY] = next(iter(versions.values()))
    return any(versions.get(name, -1) > version for name, version in moment.versions.items())


def _built(engine: Engine, folder: Path, begin: _Begin, moment: Moment, keys: Keys | None) -> BuiltState:
    if begin.folder is not None:
        restore(engine, begin.folder, Manifest.read(begin.folder, verify=False, keys=keys))
    built = BuiltState(engine.name, "" if begin.folder is None else begin.folder.name, 0, begin.position)
    chain = None
    if keys is not None:
        chain = Chain(keys, begin.owner)
        chain.follow(begin.code)
    records = Segments(folder, Disk(), chain=chain).records(begin.position)
    try:
        newer = Newer(engine.durability.newer)
        built.records = replay(engine, _up_to(engine, records, begin, moment, built), put, newer)
    except (DamagedLogError, SignatureError) as error:
        raise CheckpointError(str(error)) from error
    except PsError as error:
        raise CheckpointError(f"the log in {folder} does not fit its checkpoint: {error}") from error
    if built.position < begin.whole:
        raise _InPartError
    built.versions = {_name(each): version for each, version in _optimizers(engine)}
    built.left_out = sum(not each.name for each in engine.registry.objects())
    return built


def _up_to(
    engine: Engine, records: Iterator[Record], begin: _Begin, moment: Moment, built: BuiltState
) -> Iterator[Record]:
    """The records up to a moment at which the checkpoint is whole; each is applied before the next is asked for. Raises
    `CheckpointError` if they end before it, or if it is over, and `_InPartError`."""
    versions, last, until = *moment, begin.until
    for record in records:
        if until is not None and record.end > until:
            break
        if versions and _are_reached(engine, versions, built.position, begin.whole) and built.position >= begin.whole:
            return
        if last is not None and record.end > last:
            return
        yield record
        built.position = record.end
    ends = "ends" if until is None else "up to the next checkpoint ends"
    if last is not None and last > built.position:
        raise CheckpointError(f"the log {ends} at position {built.position}, before {last}")
    if versions and not _are_reached(engine, versions, built.position, begin.whole):
        unknown = [name for name in versions if _version_of(engine, name) is None]
        if unknown:
            raise CheckpointError(f"there is no optimizer {unknown[0]!r}, {_known(engine)}")
        raise CheckpointError(f"the log {ends} before that, {_known(engine)}")


def _are_reached(engine: Engine, versions: Mapping[str, int], position: int, whole: int) -> bool:
    """Whether all optimizers have their versions. Raises `CheckpointError` if one is past it: then they never have; or
    `_InPartError` if they may have had them before the checkpoint was `whole`."""
    found = {name: _version_of(engine, name) for name in versions}
    for name, version in versions.items():
        now = found[name]
        if now is not None and now > version:
            if position <= whole:
                raise _InPartError
            of = f" of {name!r}" if name else ""
            raise CheckpointError(
                f"there is no such moment: at position {position} of the log, version {now}{of} is there already, "
                f"{_known(engine)}; a moment can also be named by its --position"
            )
    return found == versions


def _version_of(engine: Engine, name: str) -> int | None:
    """The version of an optimizer, given by its name or id; None if it is not there now."""
    there = _optimizers(engine)
    if name == ONLY:
        if len(there) > 1:
            raise CheckpointError(f"say of which optimizer, with NAME=VERSION: {_known(engine)}")
        return there[0][1] if there else None
    return next((version for each, version in there if name in (each.name, each.ref.object_id)), None)


def _optimizers(engine: Engine) -> list[tuple[HostedObject, int]]:
    return [(each, each.value.version) for each in engine.registry.objects() if isinstance(each.value, HostedOptimizer)]


def _known(engine: Engine) -> str:
    known = [f"{_name(each)} at version {version}" for each, version in _optimizers(engine)]
    return f"with {' and '.join(known)}" if known else "with no optimizers"


def _name(hosted: HostedObject) -> str:
    return hosted.name or hosted.ref.object_id
