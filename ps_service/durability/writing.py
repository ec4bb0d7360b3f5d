"""Writes an owner, while nothing changes it, as the files of a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ps_service.durability import prepared_steps
from ps_service.durability.books import Bookkeeping, add_answers, continued
from ps_service.durability.move_effects import moves_of
from ps_service.durability.object_records import Records
from ps_service.durability.object_states import live_state_of, state_of
from ps_service.durability.run_records import runs_of
from ps_service.durability.store import finished
from ps_service.durability.tensors import TensorWriter
from ps_service.durability.value_files import FileStorage
from ps_service.numerics import generators
from ps_service.training.no_steps import no_steps
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from ps_service.durability.manifest import Manifest
    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject

_PATIENCE_SECONDS: Final = 10.0
"""Total time to wait for locks that running hosted code holds."""


def write_live(engine: Engine, folder: Path, place: tuple[int, bytes] = (0, b"")) -> tuple[Manifest, float]:
    """Writes the named objects of an owner without a log that goes on into an empty folder, all as between the same
    steps. A log that it had before ends at the place, a position and the code of the record before it.

    It has no sessions, nor steps that were prepared for passes of these, and continues no incarnation, because trainers
    go on. It has what moves have made of objects: a copy that has come and is still another owner's is written like the
    other objects. Returns the manifest, and for how many seconds steps had to wait. Raises `StillBusy` if hosted code
    holds what would have to be read.
    """
    generator, (position, code) = generators.states(engine.device), place
    message = pb.Checkpoint(generator=generator, position=position, code=code, moves=moves_of(engine))
    books = Bookkeeping(message, {})
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
    prepared = prepared_steps.read(engine)
    return _written(engine, books, folder, engine.registry.objects(), read, continued(engine), prepared)


def _written(
    engine: Engine,
    books: Bookkeeping,
    folder: Path,
    hosted: Sequence[HostedObject],
    read: Callable[[HostedObject], Any],
    incarnations: tuple[str, ...],
    prepared: Sequence[prepared_steps.Read] = (),
) -> Manifest:
    tensors = TensorWriter(folder)
    checkpoint = books.message
    add_answers(books, tensors)
    objects = Records(FileStorage(tensors), read)
    checkpoint.objects.extend(objects.records(hosted))
    prepared_steps.write_all(prepared, checkpoint, FileStorage(tensors))
    tensors.flush()
    checkpoint.runs.extend(runs_of(engine, hosted))
    return finished(folder, checkpoint, engine.name, incarnations, objects.left_out)
