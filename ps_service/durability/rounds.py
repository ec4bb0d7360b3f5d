"""The rounds of an optimizer in a checkpoint and in the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ps_service.durability import held_gradients
from ps_service.durability.named_gradients import keyed_gradients, named_gradients, placed
from ps_service.policies.decisions import Decided
from ps_service.policies.offers import Counted
from ps_service.requests import round_messages, spanning
from ps_service.training.aggregator import PLAIN
from ps_service.training.optimizers import HostedOptimizer, optimizer_of
from ps_service.training.round_gradients import Contribution, RoundGradients, Term
from ps_service.training.round_journal import OpenRound, PooledReport
from ps_wire.codec.values import Encoder
from ps_wire.policies import from_plain, to_plain
from ps_wire.reported import Reported
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ps_service.engine import Engine
    from ps_service.policies.coordinator import Coordinator
    from ps_service.tables.naming import Named
    from ps_service.training.aggregator import Aggregator
    from ps_service.training.following import Following
    from ps_service.training.round_steps import Stepper
    from ps_wire.policies import Policy
    from ps_wire.v1.values_pb2 import Value

Store = Callable[[Any, "Value"], object]
"""Stores a value with its tensors."""

Load = Callable[["Value"], Any]
"""Loads what was stored."""


class Read(NamedTuple):
    """The rounds of an optimizer at one moment: its version and policy, the gradients of the open round, named, with
    what else is known of it, those that are held for rounds over several owners, and the rest."""

    version: int
    policy: Policy | None
    total: list[Named | None] | None
    open: OpenRound
    record: pb.RoundsRecord
    held: Sequence[held_gradients.Read] = ()

    def write(self, record: pb.ObjectRecord, store: Store) -> None:
        """Writes them into the record of the optimizer."""
        record.version = self.version
        if self.policy is not None:
            Encoder(None).encode_into(record.policy, to_plain(self.policy))
        record.rounds.CopyFrom(self.record)
        held_gradients.write(self.held, record.rounds, store)
        if self.total is None:
            return
        found, record_open = self.open, record.rounds.open
        record_open.counted.extend(map(round_messages.counted_message, found.counted))
        store(self.total, record_open.total)
        reports = [(each.trainer, {name: tuple(of) for name, of in each.values.items()}) for each in found.reports]
        store(reports, record_open.reports)


def read(optimizer: HostedOptimizer) -> Read:
    """The rounds of an optimizer now."""
    aggregator, record = optimizer.aggregator, pb.RoundsRecord()
    policy = None if optimizer.rounds is None else optimizer.rounds.policy
    if aggregator is None:
        for trainer in list(optimizer.trainers):
            record.trainers.add(trainer=trainer)
        return Read(optimizer.version, policy, None, OpenRound(), record)
    record.owners.extend(aggregator.owners)
    if aggregator.following is not None:
        return _read_following(optimizer, aggregator.following, record)
    journal, found = aggregator.journal, OpenRound()
    if journal is None:
        clocks, record.most = aggregator.membership()
        epochs = {} if aggregator.coordinator is None else aggregator.coordinator.epochs
    else:
        settled = journal.settled
        clocks, record.most, epochs = settled.clocks, settled.most, settled.epochs
        found = OpenRound(list(settled.open.counted), settled.open.total, list(settled.open.reports))
        policy = None if settled.policy == PLAIN and not aggregator.owners else settled.policy
    for trainer, clock in clocks.items():
        record.trainers.add(trainer=trainer, clock=clock, epoch=epochs.get(trainer, 0))
    if aggregator.coordinator is not None:
        _read_decisions(aggregator, aggregator.coordinator, record)
    return Read(optimizer.version, policy, _named(optimizer, found.total), found, record)


def _read_decisions(aggregator: Aggregator, coordinator: Coordinator, record: pb.RoundsRecord) -> None:
    base, entries = aggregator.decided(0)
    record.applied = aggregator.last_decision()
    if aggregator.journal is not None:
        record.applied = aggregator.journal.settled.decided
        entries = [each for each in entries if each.number <= record.applied]
    record.joins = coordinator.joins
    round_messages.write(record.decisions, Decided(0, base, entries))
    record.known.update(coordinator.log.applied)


def _read_following(optimizer: HostedOptimizer, following: Following, record: pb.RoundsRecord) -> Read:
    """What is held is kept by an owner with a log. Others say that it is lost."""
    record.applied = following.applied
    if following.journal is None:
        return Read(optimizer.version, following.policy, None, OpenRound(), record)
    keys, total = following.open_round()
    found = OpenRound([Counted(each, 0, 1.0) for each in keys], total)
    held = held_gradients.read(optimizer, following)
    return Read(optimizer.version, following.policy, _named(optimizer, total), found, record, held)


def _named(optimizer: Stepper, total: Sequence[torch.Tensor | None] | None) -> list[Named | None] | None:
    return None if total is None else [*named_gradients(optimizer, total)]


def restore(engine: Engine, optimizer: HostedOptimizer, policy: Policy, record: pb.RoundsRecord, load: Load) -> None:
    """Continues the rounds of an optimizer that was made again from the request that had made it, with its policy."""
    clocks = {member.trainer: member.clock for member in record.trainers}
    for trainer in optimizer.trainers.keys() - clocks.keys():
        engine.memberships.remove(trainer, optimizer)
    if optimizer.aggregator is not None or policy != PLAIN or record.owners or any(clocks.values()):
        _restore(engine, optimizer, policy, record, clocks, load)
        if optimizer.aggregator is not None:
            optimizer.aggregator.steps.forget_values()  # it was made before parameters had their values
        if record.HasField("open"):
            _restore_open(optimizer, record.open, load)
    for trainer in clocks:
        engine.memberships.add(trainer, optimizer)


def _restore(
    engine: Engine,
    optimizer: HostedOptimizer,
    policy: Policy,
    record: pb.RoundsRecord,
    clocks: Mapping[bytes, int],
    load: Load,
) -> None:
    """Continues the rounds of an optimizer that has, or has had, a policy."""
    aggregator = engine.memberships.aggregator_of(optimizer)
    if record.owners and not aggregator.owners:
        # It got its first policy later.
        spanning.place(engine, optimizer, record.owners, policy)
    if aggregator.following is not None:
        aggregator.following.restore(record.applied, policy)
        held_gradients.restore(optimizer, aggregator.following, record, load)
        return
    aggregator.restore_open_round(OpenRound())  # which a change would step with
    aggregator.change(policy)
    if aggregator.coordinator is not None:
        epochs = {member.trainer: member.epoch for member in record.trainers}
        entries = round_messages.read(record.decisions)
        aggregator.restore_rounds(record.applied, record.known, entries, record.joins, epochs)
    aggregator.restore_membership(clocks, record.most)
    aggregator.steps.follow(policy, optimizer.version)


def _restore_open(optimizer: HostedOptimizer, record: pb.OpenRound, load: Load) -> None:
    assert optimizer.aggregator is not None
    counted, total = (
        list(map(round_messages.read_counted, record.counted)),
        keyed_gradients(optimizer, load(record.total)),
    )
    if (following := optimizer.aggregator.following) is not None:
        following.restore_pool([each.key for each in counted], total)
        return
    reports = [PooledReport(trainer, _reported(values)) for trainer, values in load(record.reports)]
    optimizer.aggregator.restore_open_round(OpenRound(counted, total, reports))


Apply = Callable[[RoundGradients], bool]
"""Applies gradients. Returns whether there are any."""


Instead = Callable[["HostedOptimizer"], Apply | None]
"""What applies gradients in the place of an optimizer, if something does."""


def replay(engine: Engine, effect: pb.RoundsEffect, load: Load, instead: Instead) -> None:
    """Does what the rounds of an optimizer have decided, from the log. If it is gone, nothing more comes of it."""
    hosted = engine.registry.get(effect.object_id)
    if hosted is None:
        return
    optimizer = optimizer_of(hosted)
    aggregator = optimizer.aggregator
    if aggregator is not None and aggregator.following is not None:
        held_gradients.replay(optimizer, aggregator.following, effect, load, instead(optimizer))
    elif aggregator is None and not effect.owners:
        _replay(engine, optimizer, effect, load, instead)
    else:
        epochs = {member.trainer: member.epoch for member in effect.members}
        decisions = effect.decisions.base, round_messages.read(effect.decisions)
        with engine.memberships.aggregator_of(optimizer).replaying(*decisions, epochs):
            _replay(engine, optimizer, effect, load, instead)
    optimizer.version = max(optimizer.version, effect.version)


def _replay(engine: Engine, optimizer: HostedOptimizer, effect: pb.RoundsEffect, load: Load, instead: Instead) -> None:
    if effect.HasField("pooled") or effect.HasField("step") or effect.divisor or effect.dropped:
        aggregator = engine.memberships.aggregator_of(optimizer)
        aggregator.steps.instead = instead(optimizer)
        try:
            _replay_gradients(aggregator, effect, load)
        finally:
            aggregator.steps.instead = None
    optimizer.version = max(optimizer.version, effect.version)
    for trainer in effect.left:
        engine.memberships.remove(trainer, optimizer)
    for member in effect.members:
        engine.memberships.add(member.trainer, optimizer)
    if effect.owners and not engine.memberships.aggregator_of(optimizer).owners:
        spanning.place(engine, optimizer, effect.owners, from_plain(load(effect.policy)))
    elif effect.HasField("policy"):
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
        # Rows of tables have effects of their own.
        dense = load(step.gradients)
        gradients = Contribution(placed(optimizer, step.places[: len(dense)], dense), None)
        aggregator.steps.apply(RoundGradients([Term(gradients, 1.0)], 1), step.version)
    if effect.divisor:
        aggregator.replay_close(effect.version, effect.divisor)
    elif effect.dropped:
        aggregator.restore_open_round(OpenRound())


def _reported(values: Mapping[str, Any]) -> dict[str, Reported]:
    return {name: Reported(*each) for name, each in values.items()}


def forget_values(engine: Engine) -> None:
    """Forgets the earlier values with which stale gradients are corrected: parameters had values of several moments."""
    for hosted in engine.registry.objects():
        if isinstance(hosted.value, HostedOptimizer) and (aggregator := hosted.value.aggregator) is not None:
            aggregator.steps.forget_values()


def drop_strangers(engine: Engine, optimizer: HostedOptimizer) -> None:
    """Ends the membership of trainers without a session, after sessions are restored: no lease of theirs would end."""
    for trainer in list(optimizer.trainers):
        if engine.sessions.get(trainer) is None:
            engine.memberships.remove(trainer, optimizer)
