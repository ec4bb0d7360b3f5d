"""What changes the trainers and the policy of rounds, as events among those of the rounds, for the durable log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_wire.policies import Policy


@dataclass(frozen=True, slots=True)
class Joined:
    """A trainer uses the optimizer from now on. Its clock begins so, and there have been at most so many trainers. The
    epoch is the number of its join if the optimizer spans owners, otherwise 0."""

    trainer: bytes
    clock: int
    most: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Departed:
    """A trainer does not use the optimizer any more."""

    trainer: bytes


@dataclass(frozen=True, slots=True)
class PolicySet:
    """The rounds follow another policy from now on, with so many trainers. If they begin over several owners with it,
    these are named."""

    policy: Policy
    most: int
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unheld:
    """Other owners need not hold the gradients of some offers any more."""


Moved = Joined | Departed | PolicySet | Unheld
"""What is in no event of the rounds themselves."""
