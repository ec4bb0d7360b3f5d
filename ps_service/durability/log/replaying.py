"""Applies the records of the log to an owner that has its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from ps_service.access.identities import remembered
from ps_service.durability import members, prepared_steps, rounds
from ps_service.durability.log import table_log, unkept
from ps_service.durability.log.storage import RecordSource
from ps_service.durability.move_effects import apply
from ps_service.durability.named_gradients import placed
from ps_service.durability.object_states import set_buffers
from ps_service.numerics import generators
from ps_service.requests.context import RequestContext
from ps_service.requests.operations import OPERATIONS
from ps_service.sessions.reply_cache import Answer, confirmed_by
from ps_service.training.optimizers import optimizer_of
from ps_service.training.round_gradients import Contribution, RoundGradients, Term
from ps_wire.codec.messages import messages_in
from ps_wire.errors import InternalError, ObjectMovedError, PsError, StaleHandleError, UnknownNameError
from ps_wire.refs import ContextId
from ps_wire.v1 import checkpoint_pb2 as pb
from ps_wire.v1.frames_pb2 import Frame, Reply
from ps_wire.v1.values_pb2 import Handle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ps_service.durability.log.newer import Newer
    from ps_service.durability.log.records import Record
    from ps_service.durability.rounds import Apply
    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject
    from ps_service.training.optimizers import HostedOptimizer
    from ps_wire.codec.payload import Buffer

Put = Callable[["Engine", pb.ObjectRecord, "RecordSource"], None]
"""Gives an object the state of its record, or makes it."""


def replay(engine: Engine, records: Iterable[Record], put: Put, newer: Newer) -> int:
    """Applies records, in their order, to what is not `newer`. Returns how many there were. Raises `PsError` if one
    does not fit what is there, and as `put`."""
    count, over, gone = 0, list[ContextId](), set[str]()
    was_mixed = False
    for read in records:
        was_mixed |= read.position < newer.until
        try:
            record = pb.LogRecord.FromString(read.message)
            if record.HasField("answer"):
                record.answer.frame.reply.position = read.end  # not known before it was written
            payload = np.frombuffer(bytearray(read.payload), np.uint8)
            _apply(engine, record, payload, put, newer, read.position, over, gone)
        except (PsError, OSError):
            raise
        except Exception as error:  # its checksum is right, and it says what no owner writes
            raise InternalError(f"the record at position {read.position} cannot be applied: {error!r}") from error
        count += 1
    unkept.remove(engine, gone)
    for id in over:
        engine.prepared.end(id)
    if was_mixed:
        rounds.forget_values(engine)
    return count


def _apply(
    engine: Engine,
    record: pb.LogRecord,
    payload: Buffer,
    put: Put,
    newer: Newer,
    position: int,
    over: list[ContextId],
    gone: set[str],
) -> None:
    """Applies a record. To `over` go passes whose prepared steps are dropped at the end: one may be made later on; and
    to `gone` the ids of objects that a start removes: one may come again before, and has its references still."""
    source = RecordSource(payload)
    if record.incarnation:
        # The start that wrote this has removed them; what comes from here on is made anew.
        unkept.remove(engine, gone)
        gone.clear()
        engine.incarnations.earlier = (record.incarnation, *engine.incarnations.earlier)
    if record.opened:
        engine.contexts.lose_up_to(ContextId(record.trainer, record.opened))
    if record.over:
        over.append(ContextId(record.trainer, record.over))
    for effect in record.effects:
        match effect.WhichOneof("kind"):
            case "unkept":
                gone.add(effect.unkept)
            case "object":
                gone.discard(effect.object.object_id)
                with newer.kept(_found_in(engine, effect.object), position):
                    put(engine, effect.object, source)
            case "step":
                _step(engine, effect.step, source, newer, position)
            case "again":
                with newer.kept(_found_in(engine, effect.again), position):
                    _again(engine, record.trainer, effect.again, source)
            case "buffers":
                _buffers(engine, effect.buffers, source)
            case "attempt":
                _attempt(engine, effect.attempt)
            case "rows":
                table_log.redo(engine, effect.rows, source)
            case "rounds":
                rounds.replay(engine, effect.rounds, source.load, partial(_instead, newer, position))
            case "prepared":
                prepared_steps.restore(engine, effect.prepared, source.load(effect.prepared.gradients))
            case "moved":
                apply(engine, effect.moved)
            case "member":
                engine.sessions.open(effect.member.session)
                members.enter(engine, effect.member)
            case "session_began":
                engine.sessions.open(effect.session_began, remembered(effect.identity))
            case "session_ended":
                _end_session(engine, effect.session_ended, over)
    if record.HasField("answer") or record.granted:
        _answer(engine, record, source)
    if record.generator:
        generators.set_states(record.generator, engine.device)


def _end_session(engine: Engine, trainer: bytes, over: list[ContextId]) -> None:
    prepared = [each for each in engine.prepared.all() if each[0].trainer == trainer]
    engine.memberships.is_replayed = True  # what rounds over several owners decide of it is in later records
    engine.end_session(engine.sessions.open(trainer))
    engine.memberships.is_replayed = False
    for id, object_id, step in prepared:
        engine.prepared.put(id, object_id, step)
        over.append(id)


def _attempt(engine: Engine, attempt: pb.AttemptEffect) -> None:
    hosted = engine.registry.get(attempt.object_id)
    if hosted is not None:  # it may be gone, and its rounds have gone on for a moment
        run = engine.contexts.runs.of(attempt.trainer, attempt.run)
        run.setdefault(optimizer_of(hosted).number, {})[attempt.place] = attempt.version


def _instead(newer: Newer, position: int, optimizer: HostedOptimizer) -> Apply | None:
    """What applies the gradients of a round at a position in the place of an optimizer, if it must not."""
    if table_log.is_of_rows(optimizer):
        return lambda _: True
    return partial(newer.apply, optimizer, position) if position < newer.until else None


def _found_in(engine: Engine, effect: pb.ObjectRecord | pb.AgainEffect) -> Iterator[HostedObject]:
    """The objects that are there of those that an effect names, whose state it may load."""
    own = [effect.object_id] if isinstance(effect, pb.ObjectRecord) else []
    for object_id in (*own, *(each.object_id for each in messages_in(effect, Handle))):
        if (found := engine.registry.get(object_id)) is not None:
            yield found


def _buffers(engine: Engine, effect: pb.BuffersEffect, source: RecordSource) -> None:
    hosted = engine.registry.get(effect.object_id)
    if hosted is None:
        return  # it was left out, or went while the call ran
    with torch.no_grad():
        set_buffers(hosted.value, source.load(effect.buffers), engine.device)


def _step(engine: Engine, step: pb.StepEffect, source: RecordSource, newer: Newer, position: int) -> None:
    hosted = engine.registry.get(step.object_id)
    if hosted is None:
        return  # its last reference went with a session while the step was made
    optimizer = optimizer_of(hosted)
    optimizer.told(step.beside)
    prepared = engine.prepared.take(ContextId(step.trainer, step.number), step.object_id) if step.number else None
    if step.is_prepared:
        if prepared is None:
            raise InternalError(f"step {step.version} of {optimizer.title} was not prepared")
        places, gradients = prepared.places, prepared.gradients
    else:
        places, gradients = step.places, source.load(step.gradients)
    if table_log.is_of_rows(optimizer):
        table_log.redo_step(optimizer, step.version, places)
        return
    made = RoundGradients([Term(Contribution(placed(optimizer, places, gradients), None), 1.0)], 1)
    if position < newer.until:
        newer.step(optimizer, made, position)
    else:
        optimizer.step(made)
    if optimizer.version != step.version:
        raise InternalError(f"{optimizer.title} has version {optimizer.version} after step {step.version} of the log")


def _again(engine: Engine, trainer: bytes, again: pb.AgainEffect, source: RecordSource) -> None:
    name = again.request.WhichOneof("operation")
    payload = source.part(again.offset, again.nbytes) if again.nbytes else None
    ctx = RequestContext(engine, trainer, payload, embeds=True, is_replayed=True)
    # Its object went with a session while the request ran, is one that cannot be kept, or was left out.
    with suppress(StaleHandleError, ObjectMovedError, UnknownNameError):
        OPERATIONS[name].handle(ctx, getattr(again.request, name), getattr(Reply(), name))


def _answer(engine: Engine, record: pb.LogRecord, source: RecordSource) -> None:
    """Keeps an answer, and grants the references in it, unless the checkpoint has both: what it has of sessions may be
    a little later than the position at which the log goes on."""
    session = engine.sessions.open(record.trainer)
    if record.answer.frame.number and record.answer.number in session.taken_numbers:
        return
    for object_id in record.granted:
        hosted = engine.registry.get(object_id)
        if hosted is not None:
            engine.registry.grant(record.trainer, hosted)
    if not record.HasField("answer"):
        return
    number = record.answer.number
    session.taken_numbers.add(number)
    frame = Frame.FromString(record.answer.frame.SerializeToString())
    if not frame.number:
        engine.reply_cache.forget(record.trainer, confirmed_by(number))  # a unary request
    chunks = [source.part(record.answer_offset, record.answer_nbytes).data] if record.answer_nbytes else []
    engine.reply_cache.record(record.trainer, number, Answer(frame, chunks, record.answer_nbytes, list(record.granted)))
