"""Halves of a network that say when they are at work, and, if told to, wait there for each other."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict

import torch
from torch import Tensor, nn

from examples.pipeline.owner import TRAINER
from examples.pipeline.shards import Shard1, Shard2
from ps_service import hosted, remote
from trainer_client import rpc

__all__ = ["Gate", "GatedShard1", "GatedShard2", "Shard1", "Shard2", "entered", "gate", "left"]

MEETING_SECONDS = 30.0


class Gate:
    """Knows who is at work. Lives in the trainer's process.

    Attributes:
        meetings: How many micro-batches the second half shall not finish before the first half has begun the next one.
        met: How often both were at work at once because they had waited for each other.
        most: How many were at work at once.
    """

    def __init__(self, meetings: int = 0) -> None:
        self.meetings = meetings
        self.met = 0
        self.most = 0
        self._lock = threading.Lock()
        self._inside = 0
        self._count: Counter[int] = Counter()
        self._places: defaultdict[int, threading.Barrier] = defaultdict(lambda: threading.Barrier(2))

    def enter(self, shard: int) -> None:
        """A half has begun a micro-batch; returns when it may go on."""
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
            # The first half's next micro-batch meets the second half's present one.
            meeting = self._count[shard] - (1 if shard == 1 else 0)
            self._count[shard] += 1
            place = self._places[meeting] if 0 <= meeting < self.meetings else None
        if place is not None and place.wait(MEETING_SECONDS) == 0:
            with self._lock:
                self.met += 1

    def leave(self) -> None:
        """A half has done a micro-batch."""
        with self._lock:
            self._inside -= 1


gate = Gate()


@remote
def entered(shard: int) -> None:
    """Tells the trainer that a half has begun."""
    gate.enter(shard)


@remote
def left() -> None:
    """Tells the trainer that a half is done."""
    gate.leave()


class Gated(nn.Module):
    """Runs a half between the trainer's gates."""

    def __init__(self, number: int, shard: nn.Module) -> None:
        super().__init__()
        self.number = number
        self.shard = shard

    def forward(self, value: rpc.RRef | Tensor) -> Tensor:
        """What the half makes of a value."""
        with torch.no_grad():  # which keeps these calls out of the pass
            rpc.rpc_sync(TRAINER, entered, (self.number,))
        try:
            result: Tensor = self.shard(value)
        finally:
            with torch.no_grad():
                rpc.rpc_sync(TRAINER, left)
        return result


@hosted
class GatedShard1(Gated):
    """The first half."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__(1, Shard1(width, seed))


@hosted
class GatedShard2(Gated):
    """The second half."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__(2, Shard2(width, seed))
