"""Writes an owner, while nothing changes it, as the files of a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.durability import files, members, prepared_steps, rounds
from ps_service.durability.manifest import Manifest
from ps_service.durability.object_records import object_record
from ps_service.durability.object_states import CannotBeKept, live_state_of, no_steps, state_of
from ps_service.durability.store import STATE
from ps_service.durability.tensors import TensorWriter
from ps_service.durability.value_files import FileStorage
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.codec.payload import joined
from ps_wire.errors import PsError
from ps_wire.release import RELEASE
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from ps_service.durability.object_records import Storage
    from ps_service.durability.value_files import Tensors
    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject
    from ps_service.sessions.reply_cache import Answer
    from ps_wire.number_set import SeenNumbers

_REMEMBERED: Final = 64
"""Most earlier incarnations that a checkpoint lists as continued."""

_PATIENCE_SECONDS: Final = 10.0
"""Total time to wait for locks that running hosted code holds."""


@dataclass
class Bookkeeping:
    """What an owner knows of trainers and members, and the cached answers of each session, by request number.

    All of it is read on the event loop without an await in between.
    """

    message: pb.Checkpoint
    answers: dict[bytes, dict[int, Answer]]


def bookkeeping(engine: Engine) -> Bookkeeping:
    """Reads what the owner knows of trainers and members now."""
    generator, killed = torch.get_rng_state().numpy().tobytes(), engine.incarnations.killed
    message, answers = pb.Checkpoint(generator=generator, killed=killed), {}
    for session in engine.sessions.all():
        record = message.sessions.add(trainer=session.trainer)
        for object_id, count in engine.registry.held_by(session.trainer).items():
            record.references.add(object_id=object_id, count=count)
        _fill(record.taken, session.taken_numbers)
        answers[session.trainer] = engine.reply_cache.answers(session.trainer)
    for trainer, (ended, lost) in engine.contexts.over().items():
        if trainer in answers:
            _fill(message.passes.add(trainer=trainer, lost=sorted(lost)).ended, ended)
    for trainer, number in engine.contexts.killed().items():
        message.passes.add(trainer=trainer, killed=number)
    message.members.extend(map(members.record, engine.directory.members()))
    return Bookkeeping(message, answers)


def books_of_running(engine: Engine) -> Bookkeeping:
    """The same of an owner that goes on: requests without an answer will be sent again."""
    books = bookkeeping(engine)
    books.message.running = True
    running: dict[bytes, set[int]] = {}
    for each in engine.requests.running():
        running.setdefault(each.trainer, set()).add(each.number)
    for record in books.message.sessions:
        for number in running.get(record.trainer, ()):
            _take_out(record.taken, number)
    return books


def _take_out(taken: pb.NumberSet, number: int) -> None:
    if number in taken.above:
        taken.above.remove(number)
    elif 0 < number <= taken.floor and number not in taken.holes:
        taken.holes.append(number)


def write_live(engine: Engine, folder: Path, position: int = 0) -> tuple[Manifest, float]:
    """Writes the named objects of an owner without a log that goes on into an empty folder, all as between the same
    steps. A log that it had before ends at the position.

    It has no sessions, and continues no incarnation, because trainers go on. Returns the manifest, and for how many
    seconds steps had to wait. Raises `StillBusy` if hosted code holds what would have to be read.
    """
    books = Bookkeeping(pb.Checkpoint(generator=torch.get_rng_state().numpy().tobytes(), position=position), {})
    named = [hosted for hosted in engine.registry.objects() if hosted.name]
    with no_steps(named, _PATIENCE_SECONDS):
        began = time.monotonic()
        read = partial(live_state_of, engine, began + _PATIENCE_SECONDS)
        manifest = _written(engine, books, folder, named, read, ())
        return manifest, time.monotonic() - began


def write(engine: Engine, books: Bookkeeping, folder: Path, orderly: bool) -> Manifest:
    """Writes an owner that accepts no requests into an empty folder.

    Objects that cannot be constructed again are left out, and named in the manifest. If hosted code is running, and the
    end not `orderly`, locks that it holds are waited for, with a time limit.
    """
    read = partial(state_of, engine, None if orderly else time.monotonic() + _PATIENCE_SECONDS)
    return _written(engine, books, folder, engine.registry.objects(), read, continued(engine))


def continued(engine: Engine) -> tuple[str, ...]:
    """The incarnations of an owner, newest first."""
    return (engine.incarnations.current, *engine.incarnations.earlier)[:_REMEMBERED]


def _written(
    engine: Engine,
    books: Bookkeeping,
    folder: Path,
    hosted: Sequence[HostedObject],
    read: Callable[[HostedObject], Any],
    incarnations: tuple[str, ...],
) -> Manifest:
    tensors = TensorWriter(folder)
    checkpoint = books.message
    add_answers(books, tensors)
    objects = Records(FileStorage(tensors), read)
    checkpoint.objects.extend(objects.records(hosted))
    prepared_steps.write_all(prepared_steps.read(engine), checkpoint, FileStorage(tensors))
    tensors.flush()
    checkpoint.runs.extend(runs_of(engine, hosted))
    return finished(folder, checkpoint, engine.name, incarnations, objects.left_out)


def finished(
    folder: Path,
    checkpoint: pb.Checkpoint,
    owner: str,
    incarnations: tuple[str, ...] = (),
    left_out: Sequence[dict[str, str]] = (),
) -> Manifest:
    """Writes the file of a checkpoint whose tensors are written. Returns the manifest, without the files."""
    files.write_file(folder / STATE, checkpoint.SerializeToString())
    return Manifest(
        owner=owner,
        incarnations=incarnations,
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        version=RELEASE,
        objects=[_line(record) for record in checkpoint.objects],
        left_out=list(left_out),
    )


def runs_of(engine: Engine, hosted: Sequence[HostedObject]) -> Iterator[pb.RunRecord]:
    """What optimizers have applied of passes that may be run again."""
    object_ids = {each.value.number: each.ref.object_id for each in hosted if isinstance(each.value, HostedOptimizer)}
    for trainer, run, optimizer, places in engine.contexts.runs.all():
        if optimizer in object_ids:
            yield pb.RunRecord(trainer=trainer, run=run, object_id=object_ids[optimizer], places=sorted(places))


class Records:
    """Makes the records of objects. `left_out` has name, class and reason of each that had to be left out."""

    def __init__(
        self,
        storage: Storage,
        read: Callable[[HostedObject], Any],
        rounds_of: Callable[[HostedOptimizer], rounds.Read] = rounds.read,
    ) -> None:
        self._storage = storage
        self._read = read
        self._rounds_of = rounds_of
        self._seen: set[str] = set()
        self._kept: dict[str, pb.ObjectRecord] = {}
        self.left_out: list[dict[str, str]] = []

    def records(self, objects: Sequence[HostedObject]) -> list[pb.ObjectRecord]:
        """The records of all objects that can be constructed again, each after its dependencies."""
        listed = {hosted.ref.object_id for hosted in objects}
        for hosted in objects:
            self._visit(hosted, listed)
        return list(self._kept.values())

    def _is_kept(self, hosted: HostedObject) -> bool:
        return hosted.ref.object_id in self._kept

    def _visit(self, hosted: HostedObject, listed: Container[str]) -> None:
        if hosted.ref.object_id in self._seen:
            return
        self._seen.add(hosted.ref.object_id)
        for dependency in hosted.creation_spec.dependencies if hosted.creation_spec is not None else ():
            self._visit(dependency, listed)
        try:
            record = object_record(hosted, self._storage, self._read, self._is_kept, self._rounds_of)
        except OSError:
            raise
        except (PsError, CannotBeKept) as error:
            self.left_out.append({"name": hosted.name, "class": hosted.class_name, "why": str(error)})
            return
        if hosted.ref.object_id not in listed:
            record.dependency_only, record.name = True, ""
        self._kept[hosted.ref.object_id] = record


def _fill(message: pb.NumberSet, numbers: SeenNumbers) -> None:
    message.floor = numbers.floor
    message.above.extend(numbers.above)
    message.holes.extend(numbers.holes)


def add_answers(books: Bookkeeping, tensors: Tensors) -> None:
    """Stores the answers of all sessions."""
    for session in books.message.sessions:
        for number, answer in books.answers[session.trainer].items():
            record = session.answers.add(number=number, frame=answer.frame)
            if answer.nbytes:
                payload = torch.from_numpy(joined(answer.chunks, answer.nbytes))
                record.payload = tensors.add(f"answers/{session.trainer.hex()[:8]}/{number}", payload)


def _line(record: pb.ObjectRecord) -> dict[str, Any]:
    """An object's line in the manifest."""
    own: dict[str, Any] = {"name": record.name, "class": record.class_name}
    return own | ({"version": record.version} if record.HasField("optimizer") else {})
