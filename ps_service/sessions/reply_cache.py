"""The reply cache: answers to mutating requests, kept until their trainer has confirmed them.

A trainer whose stream broke sends unanswered requests again. If one was executed before, its answer is found here, and
it is not executed twice. A reply cache on disk can make answers wait until it is flushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ps_wire.v1.frames_pb2 import Frame, Reply


@dataclass(slots=True)
class Answer:
    """A finished request.

    Attributes:
        frame: The reply in its frame.
        chunks: Its payload; the bytes must not change any more.
        nbytes: Length of the payload.
        granted: Ids of the objects to which the answer gives a reference; one entry per reference.
        held: Handles to other owners' objects in the answer; kept here until the trainer holds its own.
    """

    frame: Frame
    chunks: list[memoryview]
    nbytes: int
    granted: list[str]
    held: Sequence[Any] = ()

    @property
    def reply(self) -> Reply:
        """The reply without its frame."""
        return self.frame.reply


class ReplyCache(Protocol):
    """Keeps answers by trainer and request number.

    Attributes:
        instant: Whether an answer may be sent as soon as it is recorded; if not, `flushed` must be awaited before.
        nbytes: Bytes of the payloads of all answers that are kept.
    """

    instant: bool
    nbytes: int

    def record(self, trainer: bytes, number: int, answer: Answer) -> None:
        """Keeps an answer."""

    async def flushed(self) -> None:
        """Waits until everything recorded so far is as durable as this reply cache makes it."""

    def recall(self, trainer: bytes, number: int) -> Answer | None:
        """The answer, or None if it is not kept."""

    def answers(self, trainer: bytes) -> dict[int, Answer]:
        """All answers kept for a trainer, by request number."""

    def forget(self, trainer: bytes, numbers: Iterable[int]) -> None:
        """Drops answers that the trainer has confirmed."""

    def keep_only(self, trainer: bytes, numbers: Iterable[int]) -> None:
        """Drops all answers of a trainer except these."""

    def drop(self, trainer: bytes) -> None:
        """Drops all answers of a trainer that is gone."""

    def __len__(self) -> int:
        """Number of answers kept."""

    def nbytes_of(self, trainer: bytes) -> int:
        """Payload bytes of the answers kept for a trainer. May be called from any thread."""


class MemoryReplyCache:
    """A reply cache in memory; it lives as long as the process."""

    instant = True

    def __init__(self) -> None:
        self._answers: dict[bytes, dict[int, Answer]] = {}
        self.nbytes = 0
        # Only trainers with answers have an entry.
        self._bytes: dict[bytes, int] = {}

    def record(self, trainer: bytes, number: int, answer: Answer) -> None:
        kept = self._answers.setdefault(trainer, {})
        before = kept.get(number)
        kept[number] = answer
        if answer.nbytes or before is not None:
            self._count(trainer, answer.nbytes - (before.nbytes if before is not None else 0))

    async def flushed(self) -> None:
        """Returns at once."""

    def recall(self, trainer: bytes, number: int) -> Answer | None:
        return self._answers.get(trainer, {}).get(number)

    def answers(self, trainer: bytes) -> dict[int, Answer]:
        return dict(self._answers.get(trainer, {}))

    def forget(self, trainer: bytes, numbers: Iterable[int]) -> None:
        kept = self._answers.get(trainer)
        if kept is not None:
            for number in numbers:
                answer = kept.pop(number, None)
                if answer is not None and answer.nbytes:
                    self._count(trainer, -answer.nbytes)

    def keep_only(self, trainer: bytes, numbers: Iterable[int]) -> None:
        wanted = set(numbers)
        kept = self._answers.get(trainer, {})
        self.forget(trainer, [number for number in kept if number not in wanted])

    def drop(self, trainer: bytes) -> None:
        self._answers.pop(trainer, None)
        self.nbytes -= self._bytes.pop(trainer, 0)

    def __len__(self) -> int:
        return sum(map(len, self._answers.values()))

    def nbytes_of(self, trainer: bytes) -> int:
        return self._bytes.get(trainer, 0)

    def _count(self, trainer: bytes, nbytes: int) -> None:
        self.nbytes += nbytes
        now = self._bytes.get(trainer, 0) + nbytes
        if now:
            self._bytes[trainer] = now
        else:
            self._bytes.pop(trainer, None)
