"""Appends to the log what an owner carries out of rounds that another owner decides."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ps_service.durability.named_gradients import named_gradients
from ps_service.policies.decisions import Decided, Entry
from ps_service.policies.follower import Gap
from ps_service.requests import round_messages
from ps_wire.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ps_service.durability.log.effects import EffectsLog, RequestEffects
    from ps_service.policies.decisions import Decision
    from ps_service.training.optimizers import HostedOptimizer, Present
    from ps_service.training.round_journal import CarryOut
    from ps_service.training.round_steps import RoundSteps
    from ps_wire.v1 import checkpoint_pb2 as pb


class LoggedFollowing:
    """Notes decisions as they are carried out; see `FollowingJournal`. The gradients of a step are in the log since
    they are held, unless the policy corrects them."""

    def __init__(self, owner: EffectsLog, optimizer: HostedOptimizer, steps: RoundSteps) -> None:
        self._owner = owner
        self._optimizer = optimizer
        self._steps = steps

    def carry_out(self, number: int, decision: Decision | Gap, work: CarryOut) -> None:
        """As `FollowingJournal.carry_out`."""
        optimizer, effects = self._optimizer, self._owner.begin()
        effect = effects.rounds_of(optimizer)
        before = optimizer.version
        try:
            effect.failed = work(decision, _Notes(effects, effect, optimizer, self._steps.compensates))
        finally:
            effect.version = optimizer.version
            of = Decided(0, number, []) if isinstance(decision, Gap) else Decided(0, 0, [Entry(number, decision)])
            round_messages.write(effect.decisions, of)
            if optimizer.version != before:
                effects.has_version(optimizer, before)
            with suppress(StorageError):
                effects.note()


class _Notes(NamedTuple):
    """What is told to the record of a decision; see `FollowingNotes`."""

    effects: RequestEffects
    effect: pb.RoundsEffect
    optimizer: HostedOptimizer
    is_corrected: bool

    def steps(self, optimizer: HostedOptimizer, version: int, present: Sequence[Present]) -> None:
        """As `FollowingNotes.steps`."""
        if self.is_corrected:
            self.effects.write_step(self.effect.step, optimizer, version, present)
        else:
            self.effects.steps_rows(present)

    def adds(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """As `FollowingNotes.adds`."""
        if self.is_corrected:
            pooled = self.effect.pooled
            pooled.places.extend(place for place, each in enumerate(gradients) if each is not None)
            own = [each for each in named_gradients(self.optimizer, gradients) if each is not None]
            self.effects.encode(pooled.gradients, own)
