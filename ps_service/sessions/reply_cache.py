"""Keeps the answers to mutating requests until their trainer has confirmed them.

A trainer whose stream broke sends unanswered requests again, with their numbers. None is executed twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ps_wire.v1.frames_pb2 import Frame, Reply


BEING_WRITTEN: Final = -1
"""The position of an answer while its record is being appended to the log."""


@dataclass(slots=True)
class Answer:
    """A finished request. Its payload, `chunks`, must not change any more.

    `granted` has one object id for each reference that it gives; `held` are handles to other owners' objects in it,
    kept until the trainer holds its own. The trainer hardly waits for an `unhurried` one: it may go with the next. What
    its request has changed is in the log before the `position`; that is `BEING_WRITTEN` while it may be there already.
    """

    frame: Frame
    chunks: list[memoryview]
    nbytes: int
    granted: list[str]
    held: Sequence[Any] = ()
    unhurried: bool = False
    position: int = 0

    @property
    def reply(self) -> Reply:
        """The reply without its frame."""
        return self.frame.reply


def confirmed_by(number: int) -> range:
    """The unary requests whose answers a caller has that sends one with this number."""
    return range(max(1, number - 16), number)


class ReplyCache:
    """Keeps answers by trainer and request number, in memory. `nbytes` counts the payloads of all of them."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._answers: dict[bytes, dict[int, Answer]] = {}
        self._nbytes: Counter[bytes] = Counter()

    def record(self, trainer: bytes, number: int, answer: Answer) -> None:
        """Keeps an answer."""
        answers = self._answers.setdefault(trainer, {})
        before = answers.get(number)
        nbytes = answer.nbytes - (0 if before is None else before.nbytes)
        answers[number] = answer
        self._nbytes[trainer] += nbytes
        self.nbytes += nbytes

    def recall(self, trainer: bytes, number: int) -> Answer | None:
        """The answer, or None if it is not kept."""
        answers = self._answers.get(trainer)
        return None if answers is None else answers.get(number)

    def answers(self, trainer: bytes) -> dict[int, Answer]:
        """All answers kept for a trainer, by request number."""
        return dict(self._answers.get(trainer, {}))

    def forget(self, trainer: bytes, numbers: Iterable[int]) -> Sequence[int]:
        """Drops answers that the trainer has confirmed; returns the numbers of which none was kept."""
        answers = self._answers.get(trainer)
        if answers is None:
            return list(numbers)
        unknown = []
        for number in numbers:
            answer = answers.pop(number, None)
            if answer is None:
                unknown.append(number)
            else:
                self._nbytes[trainer] -= answer.nbytes
                self.nbytes -= answer.nbytes
        return unknown

    def keep_only(self, trainer: bytes, numbers: Iterable[int], last: float = math.inf) -> None:
        """Drops the answers of a trainer up to the `last` number, except these."""
        self.forget(trainer, {number for number in self.answers(trainer) if number <= last}.difference(numbers))

    def drop(self, trainer: bytes) -> None:
        """Drops all answers of a trainer that is gone."""
        self._answers.pop(trainer, None)
        self.nbytes -= self._nbytes.pop(trainer, 0)

    def __len__(self) -> int:
        """Number of answers kept."""
        return sum(map(len, self._answers.values()))

    def nbytes_of(self, trainer: bytes) -> int:
        """Payload bytes of the answers kept for a trainer. May be called from any thread."""
        return self._nbytes[trainer]
