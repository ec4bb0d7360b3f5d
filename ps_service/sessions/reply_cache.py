"""Reply cache: the answers of mutating requests, kept until their trainer has confirmed them.

A trainer whose stream broke sends again what was not answered. What was answered is found here and not run twice. A
reply cache on disk can have answers wait for its flush before they leave.
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
        chunks: Its payload; the bytes do not change any more.
        nbytes: Length of the payload.
        granted: Ids of the objects to which the answer hands out a reference, one entry each.
        held: Handles of other owners' objects that stand in it: held here until the trainer has taken hold of them.
    """

    frame: Frame
    chunks: list[memoryview]
    nbytes: int
    granted: list[str]
    held: Sequence[Any] = ()

    @property
    def reply(self) -> Reply:
        """The reply itself."""
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
        """Waits until everything recorded so far would survive what this reply cache is made to survive."""

    def recall(self, trainer: bytes, number: int) -> Answer | None:
        """The answer, if it is kept."""

    def answers(self, trainer: bytes) -> dict[int, Answer]:
        """Every answer that is kept for a trainer, by number."""

    def forget(self, trainer: bytes, numbers: Iterable[int]) -> None:
        """The trainer has these."""

    def keep_only(self, trainer: bytes, numbers: Iterable[int]) -> None:
        """The trainer lacks these, and has every other."""

    def drop(self, trainer: bytes) -> None:
        """The trainer is gone."""

    def __len__(self) -> int:
        """How many answers are kept."""

    def nbytes_of(self, trainer: bytes) -> int:
        """The bytes of the payloads that are kept for a trainer. May be called from any thread."""


class MemoryReplyCache:
    """A reply cache that lives as long as the process."""

    instant = True

    def __init__(self) -> None:
        self._answers: dict[bytes, dict[int, Answer]] = {}
        self.nbytes = 0
        # Only of those who have any.
        self._bytes: dict[bytes, int] = {}

    def record(self, trainer: bytes, number: int, answer: Answer) -> None:
        kept = self._answers.setdefault(trainer, {})
        before = kept.get(number)
        kept[number] = answer
        if answer.nbytes or before is not None:
            self._count(trainer, answer.nbytes - (before.nbytes if before is not None else 0))

    async def flushed(self) -> None:
        """There is nothing to wait for."""

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
