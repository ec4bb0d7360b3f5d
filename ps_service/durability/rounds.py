"""The rounds of an optimizer in a checkpoint and in the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ps_service.requests import round_messages, spanning
from ps_service.tables.naming import Named, keyed, named
from ps_service.training.aggregator import PLAIN, Decided
from ps_service.training.optimizers import optimizer_of
from ps_service.training.round_gradients import Contribution, RoundGradients, Term
from ps_service.training.round_journal import OpenRound, PooledReport
from ps_wire.codec.values import Encoder
from ps_wire.policies import from_plain, to_plain
from ps_wire.reported import Reported
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from ps_service.engine import Engine
    from ps_service.training.aggregator import Aggregator
    from ps_service.training.optimizers import HostedOptimizer
    from ps_service.training.round_steps import Stepper
    from ps_wire.policies import Policy
    from ps_wire.v1.values_pb2 import Value

Store = Callable[[Any, "Value"], object]
"""Stores a value with its tensors."""

Load = Callable[["Value"], Any]
"""Loads what was stored."""


class Read(NamedTuple):
    """The rounds of an optimizer at one moment: its version and policy, the gradients of the open round, named, with
    what else is known of it, and the rest. Gradients that an owner without a log holds for rounds are not kept."""

    version: int
    policy: Policy | None
    total: list[Named | None] | None
    open: OpenRound
    record: pb.RoundsRecord

    def write(self, record: pb.ObjectRecord, store: Store) -> None:
        """Writes them into the record of the optimizer."""
        record.version = self.version
        if self.policy is not None:
            Encoder(None).encode_into(record.policy, to_plain(self.policy))
        record.rounds.CopyFrom(self.record)
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
    coordinator, following, journal = aggregator.coordinator, aggregator.following, aggregator.journal
    record.owners.extend(aggregator.owners)
    found = OpenRound()
    if following is not None:
        record.applied = following.applied
    else:
        clocks, record.most = aggregator.membership()
        if journal is not None:
            settled = journal.settled
            clocks, record.most = settled.clocks, settled.most
            found = OpenRound(list(settled.open.counted), settled.open.total, list(settled.open.reports))
        epochs = {} if coordinator is None else coordinator.epochs
        for trainer, clock in clocks.items():
            record.trainers.add(trainer=trainer, clock=clock, epoch=epochs.get(trainer, 0))
    if journal is not None:
        policy = None if journal.settled.policy == PLAIN and not aggregator.owners else journal.settled.policy
    if coordinator is not None:
        log = coordinator.log
        record.applied, record.joins = log.number, coordinator.joins
        round_messages.write(record.decisions, Decided(0, log.base, log.after(log.base)))
        record.known.update(log.applied)
    total = None if found.total is None else [*named_gradients(optimizer, found.total)]
    return Read(optimizer.version, policy, total, found, record)


def named_gradients(optimizer: Stepper, gradients: Sequence[torch.Tensor | None]) -> Iterator[Named | None]:
    """Gradients of all parameters of an optimizer, in the form that survives a restart."""
    for parameter, each in zip(optimizer.parameters, gradients, strict=True):
        yield None if each is None else named(parameter, each)


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
    optimizer.aggregator.restore_open_round(OpenRound(counted, _keyed(optimizer, load(record.total)), reports))


Apply = Callable[[RoundGradients], bool]
"""Applies gradients. Returns whether there are any."""


def replay(
    engine: Engine, effect: pb.RoundsEffect, load: Load, instead: Callable[[HostedOptimizer], Apply | None]
) -> None:
    """Does what the rounds of an optimizer have decided, from the log. If it is gone, nothing more comes of it. What
    `instead` gives for the optimizer applies gradients in its place."""
    hosted = engine.registry.get(effect.object_id)
    if hosted is None:
        return
    optimizer = optimizer_of(hosted)
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
        # Rows of tables have effects of their own.
        dense = load(step.gradients)
        gradients = Contribution(placed(optimizer, step.places[: len(dense)], dense), None)
        aggregator.steps.apply(RoundGradients([Term(gradients, 1.0)], 1), step.version)
    if effect.divisor:
        aggregator.replay_close(effect.version, effect.divisor)
    elif effect.dropped:
        aggregator.restore_open_round(OpenRound())


def placed(optimizer: Stepper, places: Sequence[int], gradients: Sequence[Named]) -> list[torch.Tensor | None]:
    """Gradients of the parameters at these places, for all that an optimizer steps, on their devices."""
    found: list[Named | None] = [None] * len(optimizer.parameters)
    for place, gradient in zip(places, gradients, strict=True):
        found[place] = gradient
    return _keyed(optimizer, found)


def _keyed(optimizer: Stepper, gradients: Sequence[Named | None]) -> list[torch.Tensor | None]:
    pairs = zip(optimizer.parameters, gradients, strict=True)
    return [None if each is None else keyed(parameter, each) for parameter, each in pairs]


def _reported(values: Mapping[str, Any]) -> dict[str, Reported]:
    return {name: Reported(*each) for name, each in values.items()}


def drop_strangers(engine: Engine, optimizer: HostedOptimizer) -> None:
    """Ends the membership of trainers without a session, after sessions are restored: no lease of theirs would end."""
    for trainer in list(optimizer.trainers):
        if engine.sessions.get(trainer) is None:
            engine.memberships.remove(trainer, optimizer)
