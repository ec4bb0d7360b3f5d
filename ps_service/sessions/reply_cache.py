"""Keeps the answers to mutating requests until their trainer has confirmed them.

A trainer whose stream broke sends unanswered requests again. `SessionHandler.take` recognizes those that were executed
before by their numbers, finds their answers here, and does not execute them twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ps_wire.v1.frames_pb2 import Frame, Reply


@dataclass(slots=True)
class Answer:
    """A finished request. Its payload, `chunks`, must not change any more.

    `granted` has one object id for each reference that it gives; `held` are handles to other owners' objects in it,
    kept until the trainer holds its own. The trainer hardly waits for an `unhurried` one: it may go with the next.
    """

    frame: Frame
    chunks: list[memoryview]
    nbytes: int
    granted: list[str]
    held: Sequence[Any] = ()
    unhurried: bool = False

    @property
    def reply(self) -> Reply:
        """The reply without its frame."""
        return self.frame.reply


@dataclass(slots=True, eq=False)
class _Kept:
    """The answers kept for one trainer, by request number, and the bytes of their payloads."""

    answers: dict[int, Answer] = field(default_factory=dict)
    nbytes: int = 0


class ReplyCache:
    """Keeps answers by trainer and request number, in memory. `nbytes` counts the payloads of all of them."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._kept: dict[bytes, _Kept] = {}

    def record(self, trainer: bytes, number: int, answer: Answer) -> None:
        """Keeps an answer."""
        kept = self._kept.get(trainer)
        if kept is None:
            kept = self._kept[trainer] = _Kept()
        before = kept.answers.get(number)
        nbytes = answer.nbytes - (0 if before is None else before.nbytes)
        kept.answers[number] = answer
        kept.nbytes += nbytes
        self.nbytes += nbytes

    def recall(self, trainer: bytes, number: int) -> Answer | None:
        """The answer, or None if it is not kept."""
        kept = self._kept.get(trainer)
        return None if kept is None else kept.answers.get(number)

    def answers(self, trainer: bytes) -> dict[int, Answer]:
        """All answers kept for a trainer, by request number."""
        kept = self._kept.get(trainer)
        return {} if kept is None else dict(kept.answers)

    def forget(self, trainer: bytes, numbers: Iterable[int]) -> Sequence[int]:
        """Drops answers that the trainer has confirmed; returns the numbers of which none was kept."""
        kept = self._kept.get(trainer)
        if kept is None:
            return list(numbers)
        unknown = []
        for number in numbers:
            answer = kept.answers.pop(number, None)
            if answer is None:
                unknown.append(number)
            else:
                kept.nbytes -= answer.nbytes
                self.nbytes -= answer.nbytes
        return unknown

    def keep_only(self, trainer: bytes, numbers: Iterable[int]) -> None:
        """Drops all answers of a trainer except these."""
        self.forget(trainer, self.answers(trainer).keys() - set(numbers))

    def drop(self, trainer: bytes) -> None:
        """Drops all answers of a trainer that is gone."""
        kept = self._kept.pop(trainer, None)
        if kept is not None:
            self.nbytes -= kept.nbytes

    def __len__(self) -> int:
        """Number of answers kept."""
        return sum(len(kept.answers) for kept in self._kept.values())

    def nbytes_of(self, trainer: bytes) -> int:
        """Payload bytes of the answers kept for a trainer. May be called from any thread."""
        kept = self._kept.get(trainer)
        return 0 if kept is None else kept.nbytes
