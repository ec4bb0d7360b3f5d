"""The rounds of an optimizer in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.requests import round_messages, spanning
from ps_service.training.aggregator import Decided

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.training.aggregator import Aggregator
    from ps_service.training.optimizers import HostedOptimizer
    from ps_wire.policies import Policy
    from ps_wire.v1 import checkpoint_pb2 as pb


def write(record: pb.RoundsRecord, aggregator: Aggregator) -> None:
    """Writes the rounds of an optimizer over several owners. Gradients that an owner holds for rounds are not kept."""
    coordinator, following = aggregator.coordinator, aggregator.following
    record.owners.extend(aggregator.owners)
    if following is not None:
        record.applied = following.applied
    if coordinator is not None:
        log = coordinator.log
        record.applied, record.joins = log.number, coordinator.joins
        round_messages.write(record.decisions, Decided(0, log.base, log.after(log.base)))
        record.known.update(log.applied)
        record.members.extend(round_messages.members(coordinator.epochs.items()))


def restore(engine: Engine, optimizer: HostedOptimizer, policy: Policy, record: pb.RoundsRecord) -> None:
    """Continues the rounds of an optimizer.

    Args:
        engine: The owner.
        optimizer: What was made again from the request that had made the optimizer.
        policy: Its policy.
        record: Its rounds; empty unless they are over several owners.
    """
    aggregator = optimizer.aggregator
    if record.owners and not aggregator.owners:
        # It got its first policy later.
        spanning.place(engine, optimizer, record.owners, policy)
    if aggregator.following is not None:
        aggregator.following.restore(record.applied, policy)
        return
    aggregator.change(policy)
    if aggregator.coordinator is not None:
        epochs = {member.trainer: member.epoch for member in record.members}
        entries = round_messages.read(record.decisions)
        aggregator.restore_rounds(record.applied, record.known, entries, record.joins, epochs)
        for trainer in epochs:
            engine.memberships.add(trainer, aggregator)
