"""What an owner knows of trainers, members and passes, besides its objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from ps_service.durability import members
from ps_service.durability.move_effects import moves_of
from ps_service.numerics import generators
from ps_service.sessions.reply_cache import BEING_WRITTEN
from ps_wire.codec.payload import joined
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from ps_service.durability.value_files import Tensors
    from ps_service.engine import Engine
    from ps_service.sessions.reply_cache import Answer
    from ps_wire.number_set import SeenNumbers

_REMEMBERED: Final = 64
"""Most earlier incarnations that a checkpoint lists as continued."""


@dataclass
class Bookkeeping:
    """What an owner knows of trainers and members, and the cached answers of each session, by request number.

    All of it is read on the event loop without an await in between.
    """

    message: pb.Checkpoint
    answers: dict[bytes, dict[int, Answer]]


def bookkeeping(engine: Engine) -> Bookkeeping:
    """Reads what the owner knows of trainers and members now."""
    generator, killed = generators.states(engine.device), engine.incarnations.killed
    message, answers = pb.Checkpoint(generator=generator, killed=killed), {}
    for session in engine.sessions.all():
        record = message.sessions.add(trainer=session.trainer, identity=session.identity.name)
        for object_id, count in engine.registry.held_by(session.trainer).items():
            record.references.add(object_id=object_id, count=count)
        _fill(record.taken, session.taken_numbers)
        answers[session.trainer] = engine.reply_cache.answers(session.trainer)
    for trainer, (ended, lost) in engine.contexts.over().items():
        if trainer in answers:
            _fill(message.passes.add(trainer=trainer, lost=sorted(lost)).ended, ended)
    for trainer, number in engine.contexts.killed().items():
        message.passes.add(trainer=trainer, killed=number)
    # Those of other keepers have no session here.
    message.members.extend(members.record(each) for each in engine.directory.members() if each.session)
    message.moves.extend(moves_of(engine))
    return Bookkeeping(message, answers)


class NotNowError(Exception):
    """An answer is just being appended to the log, so that nobody can tell on which side of a position it is."""


def books_of_running(engine: Engine, position: int) -> Bookkeeping:
    """The same of an owner that goes on: requests without an answer will be sent again. Answers that are in the log
    before a position are with those that are kept, wherever they are on their way. Raises `NotNowError`."""
    books = bookkeeping(engine)
    books.message.running = True
    running: dict[bytes, set[int]] = {}
    for each in engine.requests.running():
        if each.made is not None and each.made[1].position == BEING_WRITTEN:
            raise NotNowError
        if each.made is not None and each.trainer in books.answers and 0 < each.made[1].position <= position:
            number, answer = each.made
            books.answers[each.trainer][number] = answer
        else:
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


def continued(engine: Engine) -> tuple[str, ...]:
    """The incarnations of an owner, newest first."""
    return (engine.incarnations.current, *engine.incarnations.earlier)[:_REMEMBERED]


def add_answers(books: Bookkeeping, tensors: Tensors) -> None:
    """Stores the answers of all sessions."""
    for session in books.message.sessions:
        for number, answer in books.answers[session.trainer].items():
            record = session.answers.add(number=number, frame=answer.frame)
            if answer.nbytes:
                payload = torch.from_numpy(joined(answer.chunks, answer.nbytes))
                record.payload = tensors.add(f"answers/{session.trainer.hex()[:8]}/{number}", payload)


def _fill(message: pb.NumberSet, numbers: SeenNumbers) -> None:
    message.floor = numbers.floor
    message.above.extend(numbers.above)
    message.holes.extend(numbers.holes)
