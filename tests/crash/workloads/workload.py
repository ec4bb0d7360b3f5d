"""What the trainers of the crash test do, and how it is known afterwards that every acknowledged action counts once."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import trainer_client as tc
from tests.crash.events import Action, Teller

OWNERS = ("ps0", "ps1")
ATTEMPTS = 1000


@dataclass(frozen=True)
class Horizon:
    """Which actions may be gone: those that were acknowledged later, on owners with an interval whose machine has lost
    its power. By owner, in seconds of `time.monotonic`."""

    seconds: Mapping[str, float] = field(default_factory=dict)

    def may_be_lost(self, action: Action, owner: str) -> bool:
        """Whether what an owner has acknowledged of an action may be gone."""
        return action.done_at > self.seconds.get(owner, float("inf"))

    def lossy(self, owner: str) -> bool:
        """Whether anything may be gone there."""
        return owner in self.seconds


class Workload(ABC):
    """One kind of work. Trainers, each in a slot, prepare it and take its steps; the harness checks what owners have.

    Attributes:
        name: Its name; names of its objects begin with it.
        uses: The owners it works on.
        weight: How often it is chosen.
    """

    name: str
    uses: Sequence[str] = OWNERS
    weight = 1.0

    @abstractmethod
    async def prepare(self, ps: tc.Client, slot: int) -> None:
        """Makes what it works on, or attaches to it. Called once by each trainer."""

    @abstractmethod
    async def step(self, ps: tc.Client, choose: random.Random, tell: Teller) -> None:
        """Takes one action, or a few, and tells of them."""

    @abstractmethod
    async def begin(self, ps: tc.Client) -> None:
        """Called in the harness before trainers begin: notes what owners have."""

    def drained(self, owner: str) -> None:  # noqa: B027  (most have nothing to note)
        """Called in the harness when an owner was asked to stop in order, whether or not it was killed meanwhile."""

    @abstractmethod
    async def check(self, ps: tc.Client, actions: Sequence[Action], horizon: Horizon) -> None:
        """Called in the harness while no trainer works, with the actions since the last time, in the order in which
        each slot has begun them. Raises `Violation`."""


def drawn(seed: int, *shape: int) -> torch.Tensor:
    """Random numbers that are the same for trainer and harness."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(one: Any, other: Any) -> bool:
    """Whether two states have the same bits."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and _bytes(one) == _bytes(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
