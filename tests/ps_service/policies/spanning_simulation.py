"""A simulation of trainers and an optimizer over several owners: one decides the rounds, the others follow.

Everything follows from a seed. There is no network, no clock and no torch. Requests and answers arrive in any order,
are repeated, and are lost with the trainer that waits for them. An owner runs a request once, as sessions do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from itertools import count
from typing import Any

from ps_service.policies.coordinator import Coordinator
from ps_service.policies.decisions import Decision, Entry
from ps_service.policies.follower import MOST_HELD, Follower, Gap
from ps_service.policies.offers import Answer, Close, Dropped, Event, Offer, OfferKey, Pooled, Reason
from ps_wire.errors import SessionLostError
from ps_wire.policies import Async, Policy
from tests.ps_service.policies.spanning_trainers import FOLLOWERS, Request, Trainer

ONE = 1 << 10
"""Bytes of the gradients of an offer."""


class SpanningSimulation:
    """Runs trainers against a coordinator and two followers, and checks after every event what must hold.

    Args:
        policy: The policy at first.
        others: Policies that it may change to.
        seed: Seed of all choices.
        trainers: How many trainers there are at first.
        restarts: Whether followers may start again and lose what they hold.
        coordinator: The class of the rounds, which tests replace by mutants.
        follower: The class of the followers.
    """

    def __init__(
        self,
        policy: Policy,
        others: list[Policy],
        seed: int,
        trainers: int,
        restarts: bool = False,
        coordinator: type[Coordinator] = Coordinator,
        follower: type[Follower] = Follower,
    ) -> None:
        self.random, self.failures = random.Random(seed), random.Random(seed)
        self.make_coordinator, self.make_follower = coordinator, follower
        self.rounds = coordinator(policy, FOLLOWERS)
        self.followers = {name: follower() for name in FOLLOWERS}
        self.stores: dict[str, set[OfferKey]] = {name: set() for name in FOLLOWERS}
        self.others, self.restarts, self.ids, self.numbers = others, restarts, count(1), count(1)
        self.history: list[Entry] = []
        self.applied: dict[str, list[Decision | Gap]] = {name: [] for name in FOLLOWERS}
        self.used: dict[str, set[OfferKey]] = {name: set() for name in FOLLOWERS}
        self.alive: dict[bytes, Trainer] = {}
        self.taking_part: set[bytes] = set()
        self.pooled: set[OfferKey] = set()
        self.ended: list[bytes] = []
        self.messages: list[Request] = []
        self.offers: dict[OfferKey, Request] = {}
        self.closes = self.lost = 0
        for _ in range(trainers):
            self.join()

    def run(self, steps: int) -> None:
        """Does random things, then has one trainer that is left make a step, after which all owners are equal."""
        weighted: list[tuple[Callable[[], None], int]] = [
            (self.begin, 25),
            (self.deliver, 100),
            (self.resend, 8),
            (self.join, 1),
            (self.die, 2),
            (self.notice, 3),
            (self.cancel, 4),
            (self.leave, 1),
            (self.lose_session, 1),
            (self.change, 1 if self.others else 0),
            (self.restart_coordinator, 1),
            (self.restart_follower, 1 if self.restarts else 0),
        ]
        actions, weights = zip(*weighted, strict=True)
        for _ in range(steps):
            self.random.choices(actions, weights)[0]()
            self.check()
        self.settle()

    # What trainers begin

    def join(self) -> None:
        if len(self.alive) < 5:
            trainer = Trainer(next(self.ids).to_bytes(16, "big"), self.numbers)
            self.alive[trainer.id] = trainer
            # Others take part with their first offer, if they ever make one, and do not know the number of their join.
            if self.random.random() < 0.7:
                self.taking_part.add(trainer.id)
                self.take(self.rounds.join(trainer.id))
                trainer.epoch = self.rounds.epochs[trainer.id]

    def begin(self) -> None:
        free = [trainer for trainer in self.alive.values() if trainer.task is None]
        if free:
            trainer = self.random.choice(free)
            self.start(trainer, trainer.step())

    def start(self, trainer: Trainer, task: Generator[list[Request], None, None]) -> None:
        trainer.task = task
        trainer.waits = []
        self.go_on(trainer)

    def go_on(self, trainer: Trainer) -> None:
        """Has a trainer do what it can until it waits for answers again."""
        while trainer.task is not None and all(each.got for each in trainer.waits):
            try:
                trainer.waits = next(trainer.task)
                self.messages.extend(trainer.waits)
            except StopIteration:
                trainer.task = None

    def cancel(self) -> None:
        """A trainer gives its step up, in any phase."""
        busy = [each for each in self.alive.values() if each.task is not None and each.key is not None]
        if busy:
            trainer = self.random.choice(busy)
            if any(each.what in ("hold", "offer") for each in trainer.waits):
                assert trainer.key is not None
                offered = any(each.what == "offer" for each in trainer.waits)
                if self.random.random() < 0.5:  # what has not arrived is not sent again
                    self.messages = [each for each in self.messages if each not in trainer.waits]
                self.start(trainer, trainer.give_up(trainer.key, offered))

    def leave(self) -> None:
        free = [trainer for trainer in self.alive.values() if trainer.task is None]
        if free:
            trainer = self.random.choice(free)
            self.start(trainer, trainer.tell("leave"))

    def change(self) -> None:
        free = [trainer for trainer in self.alive.values() if trainer.task is None]
        if free:
            trainer = self.random.choice(free)
            self.start(trainer, trainer.tell("change", self.random.choice(self.others)))

    def die(self) -> None:
        if len(self.alive) > 1:
            trainer = self.alive.pop(self.random.choice(list(self.alive)))
            self.ended.append(trainer.id)

    # What the network and the owners do

    def resend(self) -> None:
        """A connection breaks, and its trainer sends again what has no answer."""
        waiting = [each for trainer in self.alive.values() for each in trainer.waits if not each.got]
        if waiting:
            self.messages.append(self.random.choice(waiting))

    def notice(self) -> None:
        """The coordinator finds that the session of a dead trainer has ended."""
        if self.ended:
            self.take(self.rounds.leave(self.ended.pop(self.random.randrange(len(self.ended)))))

    def lose_session(self) -> None:
        """The session of a living trainer with the coordinator ends. The trainer learns it with its next answer."""
        if self.alive:
            self.take(self.rounds.leave(self.random.choice(list(self.alive))))

    def deliver(self) -> None:
        """Any message arrives: a request, or the answer of one that has run."""
        if not self.messages:
            return
        request = self.messages.pop(self.random.randrange(len(self.messages)))
        trainer = request.sender
        if not request.runs:
            if request.owner == "c" and trainer.id not in self.alive and trainer.id not in self.ended:
                return  # its session has ended
            request.runs = True
            self.handle(request)
            if request.answer is not None or request.what == "hold":
                self.messages.append(request)
        elif request.answer is not None or request.what == "hold":
            request.got = True
            if trainer.id in self.alive and request in trainer.waits:
                self.go_on(trainer)

    def handle(self, request: Request) -> None:
        if request.owner != "c":
            request.answer = self.follow(request.owner, request.what, *request.content)
            return
        trainer = request.sender.id
        if request.what == "offer":
            key, applied = request.content
            self.rounds.log.note(applied)
            self.offers[key] = request
            self.taking_part.add(trainer)
            self.take(self.rounds.join(trainer))
            self.take(self.rounds.offer(Offer(key, self.rounds.version)))
            return
        if request.what == "withdraw":
            key, applied = request.content
            self.rounds.log.note(applied)
            if key is not None:
                self.take(self.rounds.withdraw(key))
        elif request.what == "leave":
            self.take(self.rounds.leave(trainer))
        else:
            self.take(self.rounds.change(*request.content))
        request.answer = self.answer(request)

    def answer(self, request: Request) -> tuple[int, int, list[Entry]]:
        """The epoch of the trainer, and the decisions that some follower may not know."""
        log = self.rounds.log
        known = request.content[1] if len(request.content) > 1 else {}
        after = min(known.values()) if known else log.base
        return self.rounds.epochs.get(request.sender.id, 0), log.base, log.after(after)

    def take(self, events: list[Event]) -> None:
        log = self.rounds.log
        self.pooled.update(each.counted.key for each in events if isinstance(each, Pooled))
        made = [each for each in events if not isinstance(each, Close) or not self.refuse(each)]
        seen = self.history[-1].number if self.history else 0
        self.history.extend(log.after(seen))
        for event in made:
            if isinstance(event, Close):
                self.closes += 1
                continue
            key = event.counted.key if isinstance(event, Pooled) else event.key
            assert isinstance(event, (Pooled, Answer, Dropped))
            request = self.offers.pop(key, None)
            if request is not None:
                request.answer = self.answer(request)
                request.outdated = isinstance(event, Dropped) and event.reason is Reason.OUTDATED
                self.messages.append(request)

    def refuse(self, close: Close) -> bool:
        """The step of a round fails on the coordinator, now and then. Says whether it has."""
        if self.failures.random() < 0.9:
            return False
        keys = [each.key for each in close.counted]
        self.rounds.take_back([close], keys, not self.pooled.isdisjoint(keys))
        return True

    def follow(self, name: str, what: str, *content: Any) -> int | None:
        """Runs a request on a follower, and does with gradients what it says. None: it has refused to hold them."""
        follower, store = self.followers[name], self.stores[name]
        if what == "hold":
            (key,) = content
            try:
                follower.check(key, ONE, ONE * MOST_HELD)
            except SessionLostError:
                return None
            assert key not in self.used[name], "gradients are held again after they have counted"
            follower.hold(key, ONE)
            store.add(key)
        elif what == "release":
            (key,) = content
            follower.release(key)
        else:
            for decision in follower.settle(*content):
                self.carry_out(name, decision)
        store &= follower.held.keys() | follower.pool
        return follower.applied

    def carry_out(self, name: str, decision: Decision | Gap) -> None:
        self.applied[name].append(decision)
        if isinstance(decision, Close):
            for each in decision.counted:
                if each.key in self.stores[name]:
                    assert each.key not in self.used[name], "gradients count twice"
                    self.used[name].add(each.key)
                else:
                    assert self.restarts, f"{name} steps without gradients that it has held"
                    assert each.key in self.followers[name].missing, "a loss that is not said"
                    self.lost += 1

    def restart_coordinator(self) -> None:
        """It stops in order and starts again with its checkpoint. Answers that trainers wait for are lost or sent."""
        self.take(self.rounds.give_up())
        before = self.rounds
        self.rounds = self.make_coordinator(before.policy, FOLLOWERS)
        self.rounds.log.restore(before.log.number, before.log.applied, before.log.after(0))
        self.rounds.restore(before.version, before.joins, before.epochs)
        clocks = {trainer: member.clock for trainer, member in before.members.items()}
        self.rounds.restore_members(clocks, before.most)
        self.break_connections("c")

    def restart_follower(self) -> None:
        """It starts again, with an older state and without the gradients that it has held."""
        name = self.random.choice(FOLLOWERS)
        older = self.random.randint(max(0, self.followers[name].applied - 3), self.followers[name].applied)
        self.followers[name] = self.make_follower(older)
        self.stores[name] = set()
        self.applied[name].append(Gap(older + 1, 0))
        self.break_connections(name)

    def break_connections(self, name: str) -> None:
        """Trainers send again only what they still wait for."""
        self.messages = [each for each in self.messages if each.owner != name or each.runs or self.is_awaited(each)]

    def is_awaited(self, request: Request) -> bool:
        return request.sender.id in self.alive and request in request.sender.waits

    # What must hold

    def check(self) -> None:
        assert set(self.rounds.waiting_for()) <= self.taking_part, "a round waits for one that only reads"
        log = self.rounds.log
        numbers = {entry.number: entry.decision for entry in self.history}
        assert [entry.number for entry in self.history] == list(range(1, len(self.history) + 1))
        for name, follower in self.followers.items():
            assert follower.applied <= log.number
            if not self.restarts:
                wanted = [numbers[number] for number in range(1, follower.applied + 1)]
                assert self.applied[name] == wanted, "another sequence of rounds"
            assert self.stores[name] >= follower.held.keys(), "a name without gradients"
            ahead = sum(1 for each in self.history if each.number > follower.applied)
            open_ones = len(self.alive) + len(self.ended) + 2 * ahead
            assert len(follower.held) <= open_ones + len(self.rounds.pool) + self.orphans(), "held without bound"

    def orphans(self) -> int:
        """Offers of the dead whose messages still arrive, or that a living trainer is giving up."""
        return len(self.messages) + sum(len(each.waits) for each in self.alive.values())

    def settle(self) -> None:
        """All but one trainer die. It steps once by itself: all owners have the same then, and hold nothing."""
        self.drain()
        last = next(iter(self.alive.values()))
        for id in [id for id in self.alive if id != last.id]:
            del self.alive[id]
            self.ended.append(id)
        while self.ended:
            self.notice()
        self.drain()
        self.take(self.rounds.change(Async()))
        self.drain()
        assert last.task is None, "the last trainer waits"
        before = last.done
        self.start(last, last.step())
        self.drain()
        assert last.done == before + 1 and last.task is None
        for name, follower in self.followers.items():
            assert follower.applied == self.rounds.log.number, "the owners differ"
            assert not follower.held and not self.stores[name] and not follower.pool, "gradients are left"
        if not self.restarts:
            counted = {
                each.key
                for entry in self.history
                if isinstance(entry.decision, Close)
                for each in entry.decision.counted
            }
            assert all(self.used[name] == counted for name in FOLLOWERS)

    def drain(self) -> None:
        while self.messages:
            self.deliver()
            self.check()
