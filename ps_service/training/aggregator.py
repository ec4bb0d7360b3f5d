"""Collects the gradients that trainers offer to an optimizer, and steps it as the rounds of its policy close."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from ps_service.policies.decisions import Decided
from ps_service.policies.membership import Departed, Joined, Moved, PolicySet, Unheld
from ps_service.policies.offers import Answer, Close, Dropped, Event, Offer, OfferKey, Pooled, Reason
from ps_service.policies.rounds import missing, ran_out
from ps_service.training.event_queue import EventQueue
from ps_service.training.pool import Pool
from ps_service.training.restored_rounds import RestoredRounds
from ps_service.training.round_gradients import Contribution, RoundGradients, Term
from ps_service.training.waiting_offers import Outcome, WaitingOffers, gone
from ps_wire.attempts import REPEATED
from ps_wire.errors import InvalidArgumentError
from ps_wire.policies import Apply, Async, Policy

if TYPE_CHECKING:
    from ps_service.passes.pass_context import PassContext
    from ps_service.policies.coordinator import Coordinator
    from ps_service.policies.offers import Counted
    from ps_service.training.following import Following
    from ps_service.training.round_journal import RoundJournal
    from ps_service.training.round_steps import Note, Stepper

_log = logging.getLogger(__name__)

PLAIN = Async(Apply())
"""The policy of an optimizer without one: every step is applied by itself, at once."""


_END: Final = object()
"""The last event of an optimizer that was removed."""


class Aggregator(RestoredRounds):
    """The offers to one optimizer with a policy. Safe from several threads.

    No thread waits for a round: an offer has a future, and one thread steps for all whose round is complete. `describe`
    names a trainer in messages. Of several `owners`, the first decides: it has the `coordinator`, which is its rounds,
    and each other one is `following`. The `journal` is that of an owner with a log.
    """

    def __init__(self, optimizer: Stepper) -> None:
        super().__init__(optimizer, PLAIN)
        self.queue = EventQueue(self._handle)
        self.owners: tuple[str, ...] = ()
        self._policy: Policy = PLAIN
        self.describe: Callable[[bytes], str] = bytes.hex
        for trainer in optimizer.trainers:
            self._rounds.join(trainer)
        self._offered = WaitingOffers(self.reported)
        self._outcomes: dict[OfferKey, Outcome] = {}
        self._is_removed = False
        self._is_over = False

    @property
    def policy(self) -> Policy:
        """When gradients count."""
        return self._policy if self.following is None else self.following.policy

    def missing(self, most: int) -> list[str]:
        """Whom an open round waits for, for messages: at most so many trainers, or others that have not come yet."""
        with self._lock:
            return missing(self._rounds, self.describe, most)

    def join(self, trainer: bytes) -> None:
        """A trainer uses the optimizer from now on."""
        with self._lock:
            self._join(trainer)
        self.queue.go_on()

    def _join(self, trainer: bytes) -> None:
        is_new = trainer not in self._rounds.members
        self.queue.extend(self._rounds.join(trainer))
        if is_new and self.journal is not None:
            self.queue.extend([self._joined(trainer)])

    def _joined(self, trainer: bytes) -> Joined:
        epoch = 0 if self.coordinator is None else self.coordinator.epochs[trainer]
        return Joined(trainer, self._rounds.members[trainer].clock, self._rounds.most, epoch)

    def leave(self, trainer: bytes) -> None:
        """A trainer does not use it any more, or is lost."""
        with self._lock:
            for key in self._offered.outside_of(trainer):
                self.queue.extend(self._withdraw(key))
            is_member = trainer in self._rounds.members
            events = self._rounds.leave(trainer)
            # Before the rounds that are complete without it.
            gone = [Departed(trainer)] if is_member and self.journal is not None else []
            self.queue.extend([*gone, *events])
        self.queue.go_on()

    def change(self, policy: Policy) -> None:
        """Follows another policy from now on."""
        self._change(policy)

    def _change(self, policy: Policy, owners: tuple[str, ...] = ()) -> None:
        with self._lock:
            if self._optimizer.rounds is None:
                # Plain steps did not go through the rounds.
                self._rounds.version = self._optimizer.version
            if self.journal is None:
                self.queue.extend(self._rounds.change(policy))
            else:
                # Between the last round of the one policy and the first of the other.
                ended, moved = self._rounds.finish_round(), PolicySet(policy, len(self._rounds.members), owners)
                self.queue.extend([*ended, moved, *self._rounds.change(policy)])
            self._policy = policy
            self._optimizer.rounds = None if policy == PLAIN and not self.owners else self
            self.steps.follow(policy, self._rounds.version)
        self.queue.go_on()

    def handled(self) -> Future[None]:
        """Done once all that was told so far is handled, and in the log."""
        done: Future[None] = Future()
        self.queue.extend([done])
        self.queue.go_on()
        return done

    def finish_round(self) -> Future[None]:
        """Ends the open round with what it has; the future is done once that is applied. Trainers whose gradients are
        in it went on long ago, so these must not be lost when the owner stops."""
        done: Future[None] = Future()
        with self._lock:
            self.queue.extend([*self._end_round(), done])
        self.queue.go_on()
        return done

    def end(self) -> None:
        """The optimizer was removed: ends the open round with what it has; refuses all that wait, and later offers."""
        with self._lock:
            if self._is_removed:
                return
            self._is_removed = True
            self.queue.extend([*([] if self._optimizer.rounds is None else self._end_round()), _END])
        self.queue.go_on()

    def _end_round(self) -> list[Event]:
        return self._rounds.end_round() if self.coordinator is None else self.coordinator.give_up()

    def lead(self, owners: Sequence[str], coordinator: Coordinator) -> None:
        """Decides the rounds of an optimizer over these owners from now on. Does nothing if it has a policy already."""
        with self._lock:
            if self._optimizer.rounds is not None:
                return
            for trainer in self._rounds.members:
                coordinator.join(trainer)
            self.owners = tuple(owners)
            self.coordinator = self._rounds = coordinator
            self._optimizer.rounds = self
        self._change(coordinator.policy, self.owners)
        if self.journal is not None:
            with self._lock:
                self.queue.extend(map(self._joined, list(self._rounds.members)))
            self.queue.go_on()

    def follow(self, owners: Sequence[str], following: Following) -> None:
        """Follows the rounds that the first of these owners decides. Does nothing if it has a policy already."""
        with self._lock:
            if self._optimizer.rounds is not None:
                return
            self.owners, self.following, self._optimizer.rounds = tuple(owners), following, self
            if self.journal is not None:
                following.journal = self.journal.follows(following.steps)
                self.queue.extend([PolicySet(following.policy, 0, self.owners)])
        self.queue.go_on()

    def step_outside(self, context: PassContext, note: Note | None = None) -> int:
        """Applies the gradients of a pass at once, although there are rounds: they had not begun everywhere before.
        Returns the version after the step, and raises as `HostedOptimizer.step`, which is told the `note`."""
        before = self._optimizer.version
        version = self._optimizer.step(context, note)
        if version > before and self.coordinator is not None:
            with self._lock:
                self._rounds.version += 1
        return version

    def decisions(self, trainer: bytes, applied: Mapping[str, int]) -> Decided:
        """The decisions that another owner may not know. `applied` has the last decision that each other owner has
        carried out, as far as the trainer knows that asks."""
        coordinator = self.coordinator
        assert coordinator is not None
        with self._lock:
            log = coordinator.log
            log.note(applied)
            base, found = log.base, log.unknown(applied)
            if self.journal is None:
                return Decided(coordinator.epochs.get(trainer, 0), base, log.ready(found))
            settled = self.journal.settled
            logged = [each for each in found if each.number <= settled.decided]
            return Decided(settled.epochs.get(trainer, 0), base, logged)

    def offer(
        self, trainer: bytes, contribution: Contribution, read: int | None, number: int = 0, epoch: int = 0
    ) -> tuple[OfferKey, Future[Outcome]]:
        """Offers gradients, which `HostedOptimizer.check` has accepted; they are not changed until the future is done.

        `read` is the version whose parameters they were computed with; None if that is not known. If there are several
        owners, the trainer has given the offer its number, and knows the epoch of its join. Returns the name of the
        offer, and a future that is done once its trainer may go on. Raises `InvalidArgumentError` if an offer with that
        number waits, and `StaleHandleError` if the optimizer was removed.
        """
        with self._lock:
            if self._is_removed:
                raise gone()
            key = OfferKey(trainer, number or next(self._numbers), epoch)
            if key in self._offered:
                raise InvalidArgumentError(f"an offer with the number {number} waits already")
            read = self._rounds.version if read is None else min(read, self._rounds.version)
            future = self._offered.add(key, contribution, read)
            if contribution.attempt is None:
                self._enter(Offer(key, read))
            else:
                self._enter_later(Offer(key, read))
        self.queue.go_on()
        return key, future

    def _enter(self, offer: Offer) -> None:
        if self.coordinator is None:
            self._join(offer.key.trainer)
        self.queue.extend(self._rounds.offer(offer))
        if self._offered.is_draining and offer.key in self._rounds.waiting_offers():
            self.queue.extend(self._rounds.withdraw(offer.key))

    def _enter_later(self, offer: Offer) -> None:
        self._offered.stay_outside(offer)
        self.queue.extend([offer.key])

    def withdraw(self, key: OfferKey) -> None:
        """Stops waiting for an offer. It is taken back, if it is in no round yet."""
        with self._lock:
            self.queue.extend(self._withdraw(key))
        self.queue.go_on()

    def _withdraw(self, key: OfferKey) -> list[Event | Unheld]:
        events: list[Event | Unheld] = [*self._rounds.withdraw(key)]
        if (offer := self._offered.enter(key)) is not None:
            events.append(Dropped(key, self._rounds.staleness(offer), Reason.WITHDRAWN))
        if self.coordinator is not None and self.journal is not None:
            events.append(Unheld())
        return events

    def drain(self) -> None:
        """Ends all waits, because this owner is about to stop, and those of later offers at once. Offers that are in no
        round get a `DrainingError`; those that are applied get their result."""
        if self.following is not None:
            self.following.drain()
        with self._lock:
            self._offered.is_draining = True
            for key in self._rounds.waiting_offers():
                self.queue.extend(self._rounds.withdraw(key))
        self.queue.go_on()

    def expire(self, key: OfferKey, seconds: float) -> None:
        """Ends a wait whose time is over: its future gets an error that names the trainers it waits for."""
        with self._lock:
            if key not in self._offered:
                return
            policy = f"{self._optimizer.title} with the policy {self.policy}"
            self._offered.expire(key, ran_out(policy, seconds, self._rounds, self.describe))
            self.queue.extend(self._withdraw(key))
        self.queue.go_on()

    def _handle(self, event: Any) -> None:
        if self._is_over:
            return
        if event is _END:
            self._is_over = True
            self._offered.fail_all(gone())
            # What would keep tensors until the garbage collector finds the cycle.
            self.steps.forget()
            self._pool = Pool(self.reported)
            if self.following is not None:
                self.following.forget()
        elif isinstance(event, OfferKey):
            self._enter_once(event)
        elif isinstance(event, Close):
            self._close(event)
        elif isinstance(event, Pooled):
            self._add_to_pool(event)
        elif isinstance(event, Answer):
            self._offered.answer(event.key, self._outcomes.pop(event.key, None))
        elif isinstance(event, Moved):
            if self.journal is not None:
                self.journal.move(event)
        else:
            assert isinstance(event, Dropped)
            if self.journal is not None:
                self.journal.move(event)
            self._offered.answer(event.key, Outcome(self._optimizer.version, event.staleness, 0, event.reason.value))

    def _enter_once(self, key: OfferKey) -> None:
        """Offers to the rounds, unless another attempt has counted, or is about to."""
        with self._lock:
            offer = self._offered.enter(key)
            attempt = None if offer is None else self._offered[key].contribution.attempt
            if offer is None or attempt is None:
                return  # it was taken back
            is_due = not attempt.was_applied(self._optimizer.number)
            if is_due:
                taken_back = [self._rounds.withdraw(other) for other in self._offered.beside(attempt)]
                self.queue.extend(itertools.chain.from_iterable(taken_back))
                if all(taken_back):
                    self._enter(offer)
                else:  # one is decided, and not handled
                    self._enter_later(offer)
        if not is_due:
            attempt.passed(self._optimizer.number, applied=False)
            version = attempt.version_of(self._optimizer.number, self._optimizer.version)
            self._offered.answer(key, Outcome(version, 0, 1, REPEATED))

    def _close(self, close: Close) -> None:
        """Steps with the gradients of a round. If the step raises, its trainers get the error, and may go on."""
        counted = sorted(close.counted, key=lambda each: each.key)
        pool, self._pool = self._pool, Pool(self.reported)
        try:
            terms = pool.terms() or [self._term(each.key, each.weight) for each in counted]
            gradients = RoundGradients(terms, close.divisor)
            if self.journal is None:
                self.steps.apply(gradients, close.version)
            else:
                self.journal.close(self.steps, gradients, close)
        except BaseException as error:
            self.reported.drop_pool(pool.values)
            if self.journal is None:
                self.take_back([close], counted, pool.total is not None)
            else:
                counted = self._not_made(self.journal, close, counted)
            waiting = [self._offered.fail(each.key, error) for each in counted]
            if not all(waiting):
                # Their trainers went on long ago.
                _log.warning("a round of %d gradients was not applied: %s", len(counted), error)
            return
        self._made(close)
        values = self.reported.count(close.version, (term.contribution.report for term in terms), pool.values)
        for each in counted:
            # Most pooled offers have their answer already.
            if each.key in self._offered:
                self._outcomes[each.key] = Outcome(close.version, each.staleness, len(counted), values=values)

    def _not_made(self, journal: RoundJournal, close: Close, counted: list[Counted]) -> list[Counted]:
        """Goes on after a step that has failed. Returns the gradients that are lost with it."""
        if journal.settled.open.counted:
            # There was no room for the step in the log.
            self.restore_open_round(journal.settled.open, keeps_later=True)
            counted = [each for each in counted if each.key in self._offered]
        if untold := journal.untold(close):
            self.take_back(untold, counted)
        return counted

    def take_back(self, decisions: Sequence[Close | Pooled], counted: Sequence[Counted], is_pool: bool = False) -> None:
        """Has other owners not carry out decisions of which they were not told; see `Coordinator.take_back`."""
        if self.coordinator is not None:
            with self._lock:
                self.coordinator.take_back(decisions, [each.key for each in counted], is_pool)
            if self.journal is not None:
                self.queue.extend([Unheld()])

    def _not_pooled(self, event: Pooled) -> None:
        with self._lock:
            self._rounds.pool = [each for each in self._rounds.pool if each is not event.counted]
        if self.journal is None or self.journal.untold(event):
            self.take_back([event], [event.counted])

    def _term(self, key: OfferKey, weight: float) -> Term:
        contribution, read, _ = self._offered[key]
        return Term(self.steps.compensated(contribution, read), weight)

    def _add_to_pool(self, event: Pooled) -> None:
        """Adds gradients to the sum of the open round. Unless they complete it, their trainer may end the pass now."""
        counted = event.counted
        contribution, read, _ = self._offered[counted.key]
        try:
            gradients = self.steps.compensated(contribution, read).gradients
            own = [None if each is None else each.clone() for each in gradients]
            total = self._pool.sum_with(own, counted.weight)
            if self.journal is not None:
                self.journal.pool(event, own, total, contribution)
            self._pool.total = total
        except Exception as error:  # there may be no memory for the sum, or no room in the log
            self._not_pooled(event)
            self._offered.fail(counted.key, error)
            return
        # Its trainer goes on, and the pass may be over before the round is.
        if contribution.attempt is not None:
            contribution.attempt.passed(self._optimizer.number, True, event.version + 1)
        self._pool.add(contribution.report)
        if not event.completes:  # else it is made with the step
            self._made(event)
            self._offered.answer(counted.key, Outcome(event.version, counted.staleness, 0))
