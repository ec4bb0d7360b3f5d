"""A simulation of trainers and one optimizer's rounds: random orders of messages, deaths, joins and resends.

Everything follows from a seed. There is no network, no clock and no torch: the real rounds get the messages in the
order in which the simulation delivers them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import count

from ps_service.policies.offers import Answer, Close, Dropped, Event, Offer, OfferKey, Pooled, Reason
from ps_service.policies.rounds import Rounds
from ps_wire.policies import Policy


class Trainer:
    """A trainer: it reads the parameters, computes, offers a gradient, and waits for the answer.

    Attributes:
        id: Its id.
        number: The number of its last offer.
        sent: Its offer that has no answer; None while it computes.
    """

    def __init__(self, id: bytes) -> None:
        self.id = id
        self.number = 0
        self.sent: Offer | None = None


class Simulation:
    """Runs trainers against rounds, and checks after every event what must hold for every policy.

    Args:
        policy: The policy at first.
        others: Policies that it may change to.
        seed: Seed of all choices.
        trainers: How many trainers there are at first.
    """

    def __init__(self, policy: Policy, others: list[Policy], seed: int, trainers: int) -> None:
        self.random = random.Random(seed)
        self.rounds = Rounds(policy)
        self.others = others
        self.ids = count()
        self.alive: dict[bytes, Trainer] = {}
        self.taking_part: set[bytes] = set()
        self.offered: dict[OfferKey, Offer] = {}
        self.counted: Counter[OfferKey] = Counter()
        self.dropped: dict[OfferKey, Pooled, Reason] = {}
        self.answered: Counter[OfferKey] = Counter()
        self.closes: list[Close] = []
        self.replies: dict[OfferKey, bool] = {}
        self.messages: list[Offer] = []
        for _ in range(trainers):
            self.join()

    def run(self, steps: int) -> None:
        """Does random things, then lets all trainers that are left finish what they have begun."""
        weighted: list[tuple[Callable[[], None], int]] = [
            (self.compute, 40),
            (self.deliver, 40),
            (self.resend, 5),
            (self.join, 2),
            (self.die, 3),
            (self.cancel, 2),
            (self.change, 1 if self.others else 0),
        ]
        actions, weights = zip(*weighted, strict=True)
        for _ in range(steps):
            self.random.choices(actions, weights)[0]()
            self.check()
        self.settle()

    # What trainers and the network do

    def join(self) -> None:
        if len(self.alive) < 8:
            trainer = Trainer(next(self.ids).to_bytes(16, "big"))
            self.alive[trainer.id] = trainer
            # Others take part with their first offer, if they ever make one.
            if self.random.random() < 0.7:
                self.taking_part.add(trainer.id)
                self.take(self.rounds.join(trainer.id))

    def compute(self) -> None:
        """A trainer that has its answer reads the parameters and offers a gradient."""
        free = [trainer for trainer in self.alive.values() if trainer.sent is None]
        if free:
            trainer = self.random.choice(free)
            trainer.number += 1
            trainer.sent = Offer(OfferKey(trainer.id, trainer.number), self.rounds.version)
            self.messages.append(trainer.sent)

    def deliver(self) -> None:
        """Any message arrives: the network keeps no order between trainers."""
        if self.messages:
            offer = self.messages.pop(self.random.randrange(len(self.messages)))
            if offer.key.trainer in self.alive and offer.key not in self.replies:
                # The session runs a repeated request once; the rounds never see it a second time.
                self.replies[offer.key] = True
                self.offered[offer.key] = offer
                self.taking_part.add(offer.key.trainer)
                self.take(self.rounds.offer(offer))

    def resend(self) -> None:
        """The connection of a trainer breaks, and it sends again what has no answer."""
        waiting = [trainer.sent for trainer in self.alive.values() if trainer.sent is not None]
        if waiting:
            self.messages.append(self.random.choice(waiting))

    def die(self) -> None:
        if len(self.alive) > 1:
            id = self.random.choice(list(self.alive))
            del self.alive[id]
            self.take(self.rounds.leave(id))

    def cancel(self) -> None:
        """A trainer gives up waiting."""
        waiting = [trainer for trainer in self.alive.values() if trainer.sent is not None]
        if waiting:
            trainer = self.random.choice(waiting)
            assert trainer.sent is not None
            self.messages = [offer for offer in self.messages if offer.key != trainer.sent.key]
            self.take(self.rounds.withdraw(trainer.sent.key))
            trainer.sent = None

    def change(self) -> None:
        self.take(self.rounds.change(self.random.choice(self.others)))

    def settle(self) -> None:
        """All messages arrive, then the trainers leave one after the other: nothing may be left waiting."""
        while self.messages:
            self.deliver()
        while self.alive:
            id = next(iter(self.alive))
            del self.alive[id]
            self.take(self.rounds.leave(id))
            self.check()
        pool = [each.key for each in self.rounds.pool]
        for key in self.offered:
            fates = self.counted[key] + (key in self.dropped) + pool.count(key)
            assert fates == 1, f"{key} has {fates} fates"

    # What must hold

    def take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Close):
                assert event.version == (self.closes[-1].version + 1 if self.closes else 1)
                assert event.counted, "a round without gradients"
                self.closes.append(event)
                for each in event.counted:
                    assert each.key in self.offered
                    assert each.staleness >= 0
                    self.counted[each.key] += 1
            elif isinstance(event, Dropped):
                assert event.key not in self.dropped
                assert not self.answered[event.key]
                self.dropped[event.key] = event.reason
                self.reply(event.key)
            elif isinstance(event, Pooled):
                assert not self.counted[event.counted.key]
                if not event.completes:
                    self.answered[event.counted.key] += 1
                    self.reply(event.counted.key)
            else:
                assert isinstance(event, Answer)
                assert self.counted[event.key], "an answer before its round is complete"
                self.answered[event.key] += 1
                self.reply(event.key)

    def reply(self, key: OfferKey) -> None:
        trainer = self.alive.get(key.trainer)
        if trainer is not None and trainer.sent is not None and trainer.sent.key == key:
            trainer.sent = None

    def check(self) -> None:
        """What holds after every message."""
        assert all(times == 1 for times in self.counted.values() if times), "a gradient counted twice"
        assert all(times <= 1 for times in self.answered.values())
        assert not (self.counted.keys() & self.dropped.keys())
        assert set(self.rounds.members) <= set(self.alive) & self.taking_part
        blocked = self.rounds.waiting_for()
        assert set(blocked) <= set(self.alive), "a round waits for the dead"
        assert set(blocked) <= self.taking_part, "a round waits for one that only reads"
        arrived = {offer.key for offer in self.offered.values()}
        stuck = [
            trainer
            for trainer in self.alive.values()
            if trainer.sent is not None and trainer.sent.key in arrived and trainer.sent.key not in self.dropped
        ]
        if stuck and not blocked:
            # Only a round for more trainers than have ever come may wait for none of those that are there.
            wanted = getattr(self.rounds.policy, "trainers", None) or getattr(self.rounds.policy, "count", 0)
            assert self.rounds.most < wanted, f"{len(stuck)} trainers wait for nothing"
