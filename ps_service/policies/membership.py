"""What changes the trainers and the policy of rounds, as events among those of the rounds, for the durable log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_wire.policies import Policy


@dataclass(frozen=True, slots=True)
class Joined:
    """A trainer uses the optimizer from now on. Its clock begins so, and there have been at most so many trainers."""

    trainer: bytes
    clock: int
    most: int


@dataclass(frozen=True, slots=True)
class Departed:
    """A trainer does not use the optimizer any more."""

    trainer: bytes


@dataclass(frozen=True, slots=True)
class PolicySet:
    """The rounds follow another policy from now on, with so many trainers."""

    policy: Policy
    most: int


Moved = Joined | Departed | PolicySet
"""What is in no event of the rounds themselves."""
