"""The part of an optimizer over several owners that follows the rounds which another owner decides."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ps_service.execution.deferred import Deferred
from ps_service.memory.available import memory
from ps_service.policies.decisions import Changed, Decision, Emptied, Entry, Left, Released
from ps_service.policies.follower import Follower, Gap, Recent
from ps_service.policies.offers import Close, OfferKey, Pooled
from ps_service.training.event_queue import DRAINING, EventQueue
from ps_service.training.round_gradients import Contribution, RoundGradients, Term, added_to_each
from ps_wire.errors import DrainingError
from ps_wire.runtime.noop import noop

if TYPE_CHECKING:
    import torch

    from ps_service.training.round_journal import FollowingJournal, FollowingNotes
    from ps_service.training.round_steps import RoundSteps
    from ps_wire.policies import Policy


class Settled(NamedTuple):
    """What an owner says after it has carried out decisions up to the number `applied`: how many gradients of the round
    of an offer were lost here, and the error of that step."""

    applied: int
    version: int
    missing: int
    failed: str


class Held(NamedTuple):
    """Gradients that are held, and the version that they were computed with."""

    contribution: Contribution
    read: int


class Replayed(NamedTuple):
    """What the log has of a decision besides itself: the gradients that this owner has stepped with or added to a sum,
    if they are not those that it held, and the error of the step."""

    gradients: Sequence[torch.Tensor | None] | None = None
    failed: str = ""


class Following:
    """Holds gradients, of at most `most_bytes`, for rounds that another owner decides, and steps as it says. Safe from
    several threads. The policy is known here as far as its changes have come. `applied` is the number of the last
    decision that was carried out. The `journal` is that of an owner with a log."""

    def __init__(self, steps: RoundSteps, policy: Policy) -> None:
        self.policy = policy
        self.queue = EventQueue(self._carry_out)
        self.most_bytes = memory() // 2
        self.steps = steps
        self.applied = 0
        self.journal: FollowingJournal | None = None
        self._lock = threading.Lock()
        self._follower = Follower()
        # Their pass may go on or end before a round is decided.
        self._copies: dict[OfferKey, Held] = {}
        self._pool: list[torch.Tensor | None] | None = None
        self._failed: Recent[OfferKey] = Recent()
        # The versions that rounds have led to, by those on the owner that decides.
        self._versions: Recent[int] = Recent()
        self._failure = ""
        self._is_draining = False
        self._watches: set[Future[None]] = set()
        self._follow(policy)

    def forget(self) -> None:
        """The optimizer was removed: drops what would keep tensors until the garbage collector finds the cycle."""
        with self._lock:
            self._pool = None
            self._copies.clear()

    def restore(self, applied: int, policy: Policy) -> None:
        """Continues from the state of a checkpoint, but for the gradients that were held."""
        with self._lock:
            self._follower = Follower(applied)
            self.applied = applied
        self._follow(policy)

    def restore_held(self, key: OfferKey, held: Held) -> None:
        """Continues with gradients that were held."""
        with self._lock:
            self._follower.hold(key, held.contribution.nbytes)
            self._copies[key] = held

    def restore_pool(self, keys: Iterable[OfferKey], total: Sequence[torch.Tensor | None]) -> None:
        """Continues with the sum of the open round."""
        with self._lock:
            self._follower.pool.update(keys)
        self._pool = [*total]

    def held(self) -> dict[OfferKey, Held]:
        """The gradients that are held."""
        with self._lock:
            return dict(self._copies)

    def held_for(self, key: OfferKey) -> Held:
        """The gradients that are held for an offer."""
        with self._lock:
            return self._copies[key]

    def open_round(self) -> tuple[list[OfferKey], Sequence[torch.Tensor | None] | None]:
        """The offers in the sum of the open round, and that; only while no decision is carried out."""
        with self._lock:
            return sorted(self._follower.pool), self._pool

    def hold(self, key: OfferKey, contribution: Contribution, read: int | None) -> int:
        """Holds copies of gradients, which `HostedOptimizer.check` has accepted, until a decision names them.

        `read` is the version whose parameters they were computed with, if that is known. Returns the number of the last
        decision that was carried out. Raises as `Follower.check`, and `DrainingError` if this owner is about to stop.
        """
        if self._is_draining:
            raise DrainingError(DRAINING)
        nbytes = contribution.nbytes
        with self._lock:
            self._follower.check(key, nbytes, self.most_bytes)
        copies = [None if each is None else each.detach().clone() for each in contribution.gradients]
        version = self.steps.optimizer.version if read is None else read
        with self._lock:
            self._follower.check(key, nbytes, self.most_bytes)
            self._follower.hold(key, nbytes)
            self._copies[key] = Held(contribution._replace(gradients=copies), version)
            return self.applied

    def watch(self) -> Deferred:
        """Is done when this owner begins to drain, with a `DrainingError`."""
        future: Future[None] = Future()
        with self._lock:
            self._watches.add(future)
            is_draining = self._is_draining
        if is_draining:
            self.drain()
        return Deferred(future, noop, partial(self._watches.discard, future))

    def drain(self) -> None:
        """Holds no more gradients, and says so to all that watch, because this owner is about to stop."""
        with self._lock:
            self._is_draining = True
            watches, self._watches = self._watches, set()
        for each in watches:
            each.set_exception(DrainingError(DRAINING))

    def release(self, key: OfferKey) -> bool:
        """Frees the gradients of an offer that was never made. Says whether they were held."""
        with self._lock:
            was_held = self._follower.release(key)
            if was_held:  # else a decision may be about to take them
                self._copies.pop(key, None)
            return was_held

    def settle(self, key: OfferKey, base: int, entries: Sequence[Entry], step: int = 0) -> Future[Settled]:
        """Carries out decisions; the future is done once they are, and its result is about an offer, and about the
        round that has led to the version `step` of the coordinator, if that is known. `base` is the number of the last
        decision that the coordinator has forgotten."""
        done: Future[None] = Future()
        result: Future[Settled] = Future()
        done.add_done_callback(lambda _: result.set_result(self._settled(key, step)))
        with self._lock:
            self.queue.extend([*self._taken_from(base, entries), done])
        self.queue.go_on()
        return result

    def replay(self, base: int, entries: Sequence[Entry], replayed: Replayed) -> None:
        """Carries out decisions as before this owner has started again."""
        for number, decision in self._taken_from(base, entries):
            self._do(decision, None, replayed)
            self.applied = number

    def _taken_from(self, base: int, entries: Sequence[Entry]) -> Iterator[tuple[int, Decision | Gap]]:
        """The decisions to carry out now, with their numbers."""
        number = self._follower.applied
        for each in self._follower.settle(base, entries):
            number = each.last if isinstance(each, Gap) else number + 1
            yield number, each

    def _settled(self, key: OfferKey, step: int) -> Settled:
        with self._lock:
            missing = self._follower.missing.get(key, 0)
            failed = self._failure if key in self._failed else ""
            version = self._versions.get(step, self.steps.optimizer.version)
        return Settled(self.applied, version, missing, failed)

    def _carry_out(self, event: tuple[int, Decision | Gap]) -> None:
        number, decision = event
        if self.journal is None:
            self._do(decision)
        else:
            self.journal.carry_out(number, decision, self._do)
        self.applied = number

    def _do(
        self, decision: Decision | Gap, notes: FollowingNotes | None = None, replayed: Replayed | None = None
    ) -> str:
        """Carries out a decision. Returns the error of its step, empty if it has made none."""
        if isinstance(decision, Close):
            return self._close(decision, notes, replayed or Replayed())
        if isinstance(decision, Pooled):
            self._add_to_pool(decision, notes, replayed or Replayed())
        elif isinstance(decision, Released):
            with self._lock:
                self._copies.pop(decision.key, None)
        elif isinstance(decision, Emptied):
            self._pool = None
        elif isinstance(decision, Left):
            with self._lock:
                for key in [key for key in self._copies if key.trainer == decision.trainer]:
                    if key.epoch <= decision.epoch:
                        del self._copies[key]
        elif isinstance(decision, Changed):
            self._follow(decision.policy)
        return ""

    def _follow(self, policy: Policy) -> None:
        self.policy = policy
        self.steps.follow(policy, self.steps.optimizer.version)

    def _close(self, close: Close, notes: FollowingNotes | None, replayed: Replayed) -> str:
        """Steps with the gradients of a round that are here. If the step raises, its trainers are told."""
        counted = sorted(close.counted, key=lambda each: each.key)
        pool, self._pool = self._pool, None
        terms = [] if pool is None else [Term(Contribution(pool, None), 1.0)]
        terms += [Term(taken, each.weight) for each in counted if (taken := self._taken(each.key)) is not None]
        made, failure = RoundGradients(terms, close.divisor), replayed.failed
        if replayed.gradients is not None:
            made = RoundGradients([Term(Contribution(replayed.gradients, None), 1.0)], 1)
        try:
            if not failure:
                self.steps.apply(made, close.version, None if notes is None else notes.steps)
        except BaseException as error:
            failure = f"{type(error).__name__}: {error}"
        with self._lock:
            self._failure = failure or self._failure
            self._versions[close.version] = self.steps.optimizer.version
            for each in counted if failure else ():
                self._failed[each.key] = close.version
        return failure

    def _add_to_pool(self, event: Pooled, notes: FollowingNotes | None, replayed: Replayed) -> None:
        taken = self._taken(event.counted.key)
        if replayed.gradients is not None:
            taken = Contribution(replayed.gradients, None)
        if taken is not None:
            self._pool = added_to_each(self._pool, taken.gradients, event.counted.weight)
            if notes is not None:
                notes.adds(taken.gradients)

    def _taken(self, key: OfferKey) -> Contribution | None:
        """What was held for an offer, corrected if it is stale and the policy says so; None if it is lost."""
        with self._lock:
            held = self._copies.pop(key, None)
        if held is None:
            return None
        contribution, read = held
        return self.steps.compensated(contribution, read)
