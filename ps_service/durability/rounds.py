"""The rounds of an optimizer in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.requests import round_messages, spanning
from ps_service.training.aggregator import PLAIN, Decided

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ps_service.engine import Engine
    from ps_service.training.optimizers import HostedOptimizer
    from ps_wire.policies import Policy
    from ps_wire.v1 import checkpoint_pb2 as pb


def write(record: pb.RoundsRecord, optimizer: HostedOptimizer) -> None:
    """Writes the rounds of an optimizer. Gradients that an owner holds for rounds are not kept."""
    aggregator = optimizer.aggregator
    if aggregator is None:
        for trainer in list(optimizer.trainers):
            record.trainers.add(trainer=trainer)
        return
    coordinator, following = aggregator.coordinator, aggregator.following
    record.owners.extend(aggregator.owners)
    if following is not None:
        record.applied = following.applied
    else:
        clocks, record.most = aggregator.membership()
        epochs = {} if coordinator is None else coordinator.epochs
        for trainer, clock in clocks.items():
            record.trainers.add(trainer=trainer, clock=clock, epoch=epochs.get(trainer, 0))
    if coordinator is not None:
        log = coordinator.log
        record.applied, record.joins = log.number, coordinator.joins
        round_messages.write(record.decisions, Decided(0, log.base, log.after(log.base)))
        record.known.update(log.applied)


def restore(engine: Engine, optimizer: HostedOptimizer, policy: Policy, record: pb.RoundsRecord) -> None:
    """Continues the rounds of an optimizer that was made again from the request that had made it, with its policy."""
    clocks = {member.trainer: member.clock for member in record.trainers}
    if optimizer.aggregator is not None or policy != PLAIN or record.owners or any(clocks.values()):
        _restore(engine, optimizer, policy, record, clocks)
    for trainer in clocks:
        engine.memberships.add(trainer, optimizer)


def _restore(
    engine: Engine, optimizer: HostedOptimizer, policy: Policy, record: pb.RoundsRecord, clocks: Mapping[bytes, int]
) -> None:
    """Continues the rounds of an optimizer that has, or has had, a policy."""
    aggregator = engine.memberships.aggregator_of(optimizer)
    if record.owners and not aggregator.owners:
        # It got its first policy later.
        spanning.place(engine, optimizer, record.owners, policy)
    if aggregator.following is not None:
        aggregator.following.restore(record.applied, policy)
        return
    aggregator.change(policy)
    if aggregator.coordinator is not None:
        epochs = {member.trainer: member.epoch for member in record.trainers}
        entries = round_messages.read(record.decisions)
        aggregator.restore_rounds(record.applied, record.known, entries, record.joins, epochs)
    aggregator.restore_membership(clocks, record.most)


def drop_strangers(engine: Engine, optimizer: HostedOptimizer) -> None:
    """Ends the membership of trainers without a session, after sessions are restored: no lease of theirs would end."""
    for trainer in list(optimizer.trainers):
        if engine.sessions.get(trainer) is None:
            engine.memberships.remove(trainer, optimizer)
