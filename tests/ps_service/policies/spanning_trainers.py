"""The trainers in a simulation of an optimizer over several owners: what they ask the owners, and in which order."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from ps_service.policies.decisions import Entry
from ps_service.policies.offers import OfferKey

FOLLOWERS = ("f1", "f2")


@dataclass
class Request:
    """A request of a trainer.

    Attributes:
        sender: The trainer.
        owner: Whom it is for: a follower, or "c".
        what: hold, release, settle, offer, withdraw, leave or change.
        content: Its arguments.
        answer: Its answer, once the owner has run it.
        runs: Whether the owner has begun to run it.
        got: Whether the trainer has the answer.
        outdated: Whether it is an offer from before its trainer has left.
    """

    sender: Trainer
    owner: str
    what: str
    content: tuple[Any, ...]
    answer: Any = None
    runs: bool = False
    got: bool = False
    outdated: bool = False


class Trainer:
    """A trainer, which does one thing at a time. What it does is a generator of requests that it makes together.

    Args:
        id: Its id.
        numbers: Numbers for offers, which all trainers may share.

    Attributes:
        id: Its id.
        numbers: As the argument.
        epoch: The number of its join, as far as it knows.
        task: What it does; None if it is free.
        waits: The requests whose answers it waits for.
        key: The offer of its step.
        done: How many of its steps were answered.
    """

    def __init__(self, id: bytes, numbers: Iterator[int]) -> None:
        self.id = id
        self.numbers = numbers
        self.epoch = 0
        self.task: Generator[list[Request], None, None] | None = None
        self.waits: list[Request] = []
        self.key: OfferKey | None = None
        self.done = 0

    def step(self) -> Generator[list[Request], None, None]:
        while True:
            key = self.key = OfferKey(self.id, next(self.numbers), self.epoch)
            holds = [Request(self, name, "hold", (key,)) for name in FOLLOWERS] if key.epoch else []
            yield holds
            applied = {each.owner: each.answer for each in holds}
            if None in applied.values():
                yield self.releases(key)
                self.epoch = 0  # as after the loss of a session
                continue
            offer = Request(self, "c", "offer", (key, applied))
            yield [offer]
            self.epoch, base, entries = offer.answer
            if not offer.outdated:
                yield from self.spread(base, entries)
                self.done += 1
                return
            yield self.releases(key)

    def spread(self, base: int, entries: list[Entry]) -> Generator[list[Request], None, None]:
        while True:
            settles = [Request(self, name, "settle", (base, entries)) for name in FOLLOWERS]
            yield settles
            applied = {each.owner: each.answer for each in settles}
            last = entries[-1].number if entries else base
            if min(applied.values()) >= last:
                return
            again = Request(self, "c", "withdraw", (None, applied))
            yield [again]
            _, base, entries = again.answer

    def give_up(self, key: OfferKey, offered: bool) -> Generator[list[Request], None, None]:
        if not offered:
            yield self.releases(key)
            return
        withdraw = Request(self, "c", "withdraw", (key, {}))
        yield [withdraw]
        yield from self.spread(*withdraw.answer[1:])

    def tell(self, what: str, *content: Any) -> Generator[list[Request], None, None]:
        asked = Request(self, "c", what, content)
        yield [asked]
        self.epoch = asked.answer[0]
        yield from self.spread(*asked.answer[1:])

    def releases(self, key: OfferKey) -> list[Request]:
        return [Request(self, name, "release", (key,)) for name in FOLLOWERS]
