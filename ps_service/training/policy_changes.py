"""Gives optimizers their policies. Until the first, an optimizer has nothing that collects gradients for rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.training.aggregator import PLAIN, Aggregator

if TYPE_CHECKING:
    from ps_service.training.creation import OptimizerHost
    from ps_service.training.optimizers import HostedOptimizer
    from ps_wire.policies import Policy


def change(engine: OptimizerHost, optimizer: HostedOptimizer, policy: Policy) -> None:
    """Has an optimizer follow another policy from now on."""
    if policy != PLAIN or optimizer.aggregator is not None:
        aggregator_of(engine, optimizer).change(policy)


def aggregator_of(engine: OptimizerHost, optimizer: HostedOptimizer) -> Aggregator:
    """What collects gradients for an optimizer, made if it has had no policy yet. It knows the optimizer's trainers."""
    with engine.memberships.lock:
        if optimizer.aggregator is not None:
            return optimizer.aggregator
        made = Aggregator(optimizer, optimizer.trainers)
        made.queue.submit, made.describe = engine.compute.submit, engine.sessions.describe
        optimizer.aggregator = made
    # These were told of all optimizers with an aggregator, and maybe too early for this one.
    if engine.draining:
        made.drain()
    if optimizer.is_removed:
        made.end()
    return made
