"""Appends to the log what the rounds of an optimizer decide: outside of requests, in the order of their events."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from ps_service.durability.log.following_journal import LoggedFollowing
from ps_service.durability.named_gradients import named_gradients
from ps_service.policies.decisions import Changed, Decided, Emptied, Left, Released
from ps_service.policies.membership import Departed, PolicySet, Unheld
from ps_service.policies.offers import Dropped, Pooled, Reason
from ps_service.requests import round_messages
from ps_service.training.aggregator import PLAIN
from ps_service.training.round_journal import PooledReport, SettledRounds
from ps_wire.errors import StorageError
from ps_wire.policies import to_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from ps_service.durability.log.effects import EffectsLog, RequestEffects
    from ps_service.policies.decisions import Decision, Entry
    from ps_service.policies.membership import Moved
    from ps_service.policies.offers import Close
    from ps_service.training.aggregator import Aggregator
    from ps_service.training.optimizers import HostedOptimizer, Present
    from ps_service.training.round_gradients import Contribution, RoundGradients
    from ps_service.training.round_journal import FollowingJournal
    from ps_service.training.round_steps import RoundSteps
    from ps_wire.attempts import Attempt
    from ps_wire.v1 import checkpoint_pb2 as pb

    Gradients = Sequence[torch.Tensor | None]


class _Completing(NamedTuple):
    """A gradient that completes its round, and the place of its step among those of its attempt."""

    event: Pooled
    own: Gradients
    of: Contribution
    place: int


class LoggedRounds:
    """Notes the rounds of one optimizer; see `RoundJournal`. Whoever has the turn of the owner finds `settled` as the
    log has it. The decisions about rounds over several owners are in the records of what they are about."""

    def __init__(self, owner: EffectsLog, optimizer: HostedOptimizer, aggregator: Aggregator) -> None:
        self._owner = owner
        self._optimizer = optimizer
        policy = PLAIN if optimizer.rounds is None else aggregator.policy
        self._aggregator = aggregator
        self.settled = SettledRounds(policy, *aggregator.membership(), aggregator.open_round)
        if (coordinator := aggregator.coordinator) is not None:
            self.settled.epochs, self.settled.decided = dict(coordinator.epochs), coordinator.log.number
        # Of the optimizer, as the log has it.
        self._version = optimizer.version
        # Its gradients are in the record of the step that they complete.
        self._completing: _Completing | None = None
        self._failed: _Completing | None = None

    def move(self, event: Moved | Dropped) -> None:
        """As `RoundJournal.move`."""
        if isinstance(event, Dropped) and event.reason not in (Reason.LATE, Reason.STALE):
            return
        if isinstance(event, Unheld) and not self._due()[1]:
            return
        # If it cannot be written, the object is written as a whole with its next change.
        with suppress(StorageError), self._record(event) as (effects, effect):
            self.settled.move(event)
            if isinstance(event, Departed):
                effect.left.append(event.trainer)
            elif isinstance(event, PolicySet):
                effects.encode(effect.policy, to_plain(event.policy))
                effect.owners.extend(event.owners)

    def pool(self, event: Pooled, own: Gradients, total: Gradients, of: Contribution) -> None:
        """As `RoundJournal.pool`."""
        place = 0 if of.attempt is None else of.attempt.place_of(self._optimizer.number)
        pooled = _Completing(event, own, of, place)
        if event.completes:
            self._completing = pooled
            return
        with self._record(event) as (effects, effect):
            effects.check(_nbytes(own))
            self._write_pooled(effects, effect, pooled)
            report = of.report
            values = None if report is None else PooledReport(report.trainer, report.values)
            self.settled.add(event.counted, total, values)

    def close(self, steps: RoundSteps, gradients: RoundGradients, close: Close) -> None:
        """As `RoundJournal.close`."""
        self._failed = completing = self._completing
        self._completing = None
        is_pool = completing is not None or self.settled.open.total is not None
        is_checked = is_made = False

        def check() -> None:
            nonlocal is_checked
            effects.check(gradients.gradient_bytes)
            is_checked = True

        def note(optimizer: HostedOptimizer, version: int, present: Sequence[Present]) -> None:
            nonlocal is_made
            is_made = True
            if not is_pool:
                effects.write_step(effect.step, optimizer, version, present)
                for attempt in gradients.attempts:
                    self._write_attempt(effects, effect, attempt, attempt.place_of(optimizer.number), close.version)
                return
            effect.divisor = close.divisor
            effects.steps_rows(present)
            if completing is not None:
                self._write_pooled(effects, effect, completing)

        with self._record(*self._events(completing, close)) as (effects, effect):
            try:
                steps.apply(gradients, close.version, note, check)
            except StorageError:
                raise
            except BaseException:
                # The record is to have what others do instead.
                self._aggregator.take_back([close], close.counted, is_pool)
                raise
            finally:
                if completing is not None:
                    self.settled.count(completing.event.counted.key.trainer)
                if is_checked or not is_pool:
                    effect.dropped = is_pool and not is_made
                    self.settled.close(close)
                if is_made and not is_pool:
                    effect.step.version = self._optimizer.version

    def untold(self, event: Close | Pooled) -> list[Close | Pooled]:
        """As `RoundJournal.untold`."""
        events = [event] if isinstance(event, Pooled) else self._events(self._failed, event)
        _, entries = self._aggregator.decided(self.settled.decided)
        there = [each.decision for each in entries]
        return [each for each in events if any(each is decision for decision in there)]

    def follows(self, steps: RoundSteps) -> FollowingJournal:
        """As `RoundJournal.follows`."""
        return LoggedFollowing(self._owner, self._optimizer, steps)

    def _events(self, completing: _Completing | None, close: Close) -> list[Close | Pooled]:
        return [close] if completing is None else [completing.event, close]

    def _due(self, *events: object) -> tuple[int, list[Entry]]:
        """The decisions that a record of some events has: up to theirs, and what is released or dropped behind
        that."""
        base, entries = self._aggregator.decided(self.settled.decided)
        own = [place for place, each in enumerate(entries) if any(_is_of(each.decision, event) for event in events)]
        count = max(own) + 1 if own else 0
        while count < len(entries) and isinstance(entries[count].decision, (Released, Emptied)):
            count += 1
        return base, entries[:count]

    @contextmanager
    def _record(self, *events: object) -> Iterator[tuple[RequestEffects, pb.RoundsEffect]]:
        """Takes the turn of the owner for a block that fills an effect of events, and appends that: also if the block
        raises, unless there is no room."""
        effects = self._owner.begin()
        effect = effects.rounds_of(self._optimizer)
        try:
            yield effects, effect
        except StorageError:
            effects.abandon()
            raise
        except BaseException:
            self._append(effects, effect, events)
            raise
        else:
            self._append(effects, effect, events)
        finally:
            effects.abandon()

    def _append(self, effects: RequestEffects, effect: pb.RoundsEffect, events: Sequence[object]) -> None:
        settled = self.settled
        effect.version, effect.most = self._optimizer.version, settled.most
        for trainer in settled.unlogged:
            clock, epoch = settled.clocks[trainer], settled.epochs.get(trainer, 0)
            effect.members.add(trainer=trainer, clock=clock, epoch=epoch)
        base, entries = self._due(*events)
        if base or entries:
            round_messages.write(effect.decisions, Decided(0, base, entries))
        if self._version != self._optimizer.version:
            effects.has_version(self._optimizer, self._version)
            self._version = self._optimizer.version
        try:
            effects.note()
        finally:  # if they cannot be written now, they are written before all else
            settled.decided = max(base, entries[-1].number if entries else settled.decided)
        settled.unlogged.clear()

    def _write_pooled(self, effects: RequestEffects, effect: pb.RoundsEffect, pooled: _Completing) -> None:
        message, of = effect.pooled, pooled.of
        message.counted.CopyFrom(round_messages.counted_message(pooled.event.counted))
        message.places.extend(place for place, each in enumerate(pooled.own) if each is not None)
        own = [each for each in named_gradients(self._optimizer, pooled.own) if each is not None]
        effects.encode(message.gradients, own)
        if of.report is not None:
            effects.encode(message.values, {name: tuple(each) for name, each in of.report.values.items()})
        if of.attempt is not None:
            self._write_attempt(effects, effect, of.attempt, pooled.place, pooled.event.version + 1)

    def _write_attempt(
        self, effects: RequestEffects, effect: pb.RoundsEffect, attempt: Attempt, place: int, version: int
    ) -> None:
        if attempt.of is not None and effect.object_id:
            effects.add_attempt(attempt.of, self._optimizer, place, version)


def _nbytes(gradients: Gradients) -> int:
    return sum(each.nbytes for each in gradients if each is not None and not each.is_sparse)


def _is_of(decision: Decision, event: object) -> bool:
    """Whether an event is what a decision is about."""
    if isinstance(event, PolicySet):
        return isinstance(decision, Changed)
    if isinstance(event, Departed):
        return isinstance(decision, Left) and decision.trainer == event.trainer
    return decision is event
