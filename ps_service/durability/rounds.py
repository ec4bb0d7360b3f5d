"""The rounds of an optimizer in a checkpoint and in the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ps_service.requests import round_messages, spanning
from ps_service.training.aggregator import PLAIN, Decided
from ps_service.training.optimizers import optimizer_of
from ps_service.training.round_gradients import Contribution, RoundGradients, Term
from ps_service.training.round_journal import OpenRound, PooledReport
from ps_wire.policies import from_plain
from ps_wire.reported import Reported

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ps_service.engine import Engine
    from ps_service.training.aggregator import Aggregator
    from ps_service.training.optimizers import HostedOptimizer
    from ps_service.training.round_steps import Stepper
    from ps_wire.policies import Policy
    from ps_wire.v1 import checkpoint_pb2 as pb
    from ps_wire.v1.values_pb2 import Value

Store = Callable[[Any, "Value"], object]
"""Stores a value with its tensors."""

Load = Callable[["Value"], Any]
"""Loads what was stored."""


def policy_of(optimizer: HostedOptimizer) -> Policy | None:
    """The policy of an optimizer; None if it has none."""
    if optimizer.aggregator is not None and (journal := optimizer.aggregator.journal) is not None:
        return None if journal.settled.policy == PLAIN and not optimizer.aggregator.owners else journal.settled.policy
    return None if optimizer.rounds is None else optimizer.rounds.policy


def write(record: pb.RoundsRecord, optimizer: HostedOptimizer, store: Store) -> None:
    """Writes the rounds of an optimizer. Gradients that an owner without a log holds for rounds are not kept."""
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
        if aggregator.journal is None:
            clocks, record.most = aggregator.membership()
        else:
            settled = aggregator.journal.settled
            clocks, record.most = settled.clocks, settled.most
            _write_open(record.open, settled.open, store)
        epochs = {} if coordinator is None else coordinator.epochs
        for trainer, clock in clocks.items():
            record.trainers.add(trainer=trainer, clock=clock, epoch=epochs.get(trainer, 0))
    if coordinator is not None:
        log = coordinator.log
        record.applied, record.joins = log.number, coordinator.joins
        round_messages.write(record.decisions, Decided(0, log.base, log.after(log.base)))
        record.known.update(log.applied)


def _write_open(record: pb.OpenRound, found: OpenRound, store: Store) -> None:
    if found.total is not None:
        record.counted.extend(map(round_messages.counted_message, found.counted))
        store(list(found.total), record.total)
        reports = [(each.trainer, {name: tuple(of) for name, of in each.values.items()}) for each in found.reports]
        store(reports, record.reports)


def restore(engine: Engine, optimizer: HostedOptimizer, policy: Policy, record: pb.RoundsRecord, load: Load) -> None:
    """Continues the rounds of an optimizer that was made again from the request that had made it, with its policy."""
    clocks = {member.trainer: member.clock for member in record.trainers}
    for trainer in optimizer.trainers.keys() - clocks.keys():
        engine.memberships.remove(trainer, optimizer)
    if optimizer.aggregator is not None or policy != PLAIN or record.owners or any(clocks.values()):
        _restore(engine, optimizer, policy, record, clocks)
        if record.HasField("open"):
            _restore_open(optimizer, record.open, load)
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
    aggregator.restore_open_round(OpenRound())  # which a change would step with
    aggregator.change(policy)
    if aggregator.coordinator is not None:
        epochs = {member.trainer: member.epoch for member in record.trainers}
        entries = round_messages.read(record.decisions)
        aggregator.restore_rounds(record.applied, record.known, entries, record.joins, epochs)
    aggregator.restore_membership(clocks, record.most)


def _restore_open(optimizer: HostedOptimizer, record: pb.OpenRound, load: Load) -> None:
    assert optimizer.aggregator is not None
    counted = list(map(round_messages.read_counted, record.counted))
    reports = [PooledReport(trainer, _reported(values)) for trainer, values in load(record.reports)]
    optimizer.aggregator.restore_open_round(OpenRound(counted, _moved(optimizer, load(record.total)), reports))


def replay(engine: Engine, effect: pb.RoundsEffect, load: Load) -> None:
    """Does what the rounds of an optimizer have decided, from the log. If it is gone, nothing more comes of it."""
    hosted = engine.registry.get(effect.object_id)
    if hosted is None:
        return
    optimizer = optimizer_of(hosted)
    if effect.HasField("pooled") or effect.HasField("step") or effect.divisor or effect.dropped:
        _replay_gradients(engine.memberships.aggregator_of(optimizer), effect, load)
    optimizer.version = max(optimizer.version, effect.version)
    for trainer in effect.left:
        engine.memberships.remove(trainer, optimizer)
    for member in effect.members:
        engine.memberships.add(member.trainer, optimizer)
    if effect.HasField("policy"):
        aggregator = engine.memberships.aggregator_of(optimizer)
        found = aggregator.open_round  # there is one only if its step could not be written; a change would step with it
        aggregator.restore_open_round(OpenRound())
        aggregator.change(from_plain(load(effect.policy)))
        aggregator.restore_open_round(found)
    if optimizer.aggregator is not None:
        clocks = {member.trainer: member.clock for member in effect.members}
        optimizer.aggregator.restore_membership(clocks, effect.most)


def _replay_gradients(aggregator: Aggregator, effect: pb.RoundsEffect, load: Load) -> None:
    optimizer, pooled, step = aggregator.steps.optimizer, effect.pooled, effect.step
    if effect.HasField("pooled"):
        counted = round_messages.read_counted(pooled.counted)
        values = load(pooled.values) if pooled.HasField("values") else None
        report = None if values is None else PooledReport(counted.key.trainer, _reported(values))
        own = placed(optimizer, pooled.places, load(pooled.gradients))
        aggregator.replay_pooled(counted, own, report)
    if effect.HasField("step"):
        gradients = Contribution(placed(optimizer, step.places, load(step.gradients)), None)
        aggregator.steps.apply(RoundGradients([Term(gradients, 1.0)], 1), step.version)
    if effect.divisor:
        aggregator.replay_close(effect.version, effect.divisor)
    elif effect.dropped:
        aggregator.restore_open_round(OpenRound())


def placed(optimizer: Stepper, places: Sequence[int], gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradients of the parameters at these places, for all that an optimizer steps."""
    found: list[torch.Tensor | None] = [None] * len(optimizer.parameters)
    for place, gradient in zip(places, gradients, strict=True):
        found[place] = gradient
    return _moved(optimizer, found)


def _moved(optimizer: Stepper, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Gradients on the devices of their parameters."""
    pairs = zip(gradients, optimizer.parameters, strict=True)
    return [None if each is None else each.to(parameter.device) for each, parameter in pairs]


def _reported(values: Mapping[str, Any]) -> dict[str, Reported]:
    return {name: Reported(*each) for name, each in values.items()}


def drop_strangers(engine: Engine, optimizer: HostedOptimizer) -> None:
    """Ends the membership of trainers without a session, after sessions are restored: no lease of theirs would end."""
    for trainer in list(optimizer.trainers):
        if engine.sessions.get(trainer) is None:
            engine.memberships.remove(trainer, optimizer)
