"""Passes and pushes that are made again if an owner has lost them, or may have, as the trainer knows them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import torch

from ps_wire.attempts import Attempt

if TYPE_CHECKING:
    from ps_wire.attempts import Applied
    from ps_wire.v1.operations_pb2 import ContextId, PushRequest


class Run:
    """One pass or push, with all of its attempts. Runs with numbers below `runs_from` were over before."""

    def __init__(self, number: int, runs_from: int) -> None:
        self.number: Final = number
        self._runs_from: Final = runs_from
        self._applied: Final[Applied] = {}

    def attempt(self, message: ContextId | PushRequest) -> Attempt:
        """A new attempt, whose message gets the number. Optimizers here are known by `Parameters`."""
        message.run, message.runs_from = self.number, self._runs_from
        return Attempt(self._applied)


class Parameters(tuple[torch.Tensor, ...]):
    """The parameters of an optimizer of this process. It names the optimizer: an attempt may have made it again."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parameters) and list(map(id, self)) == list(map(id, other))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self)))


class Runs:
    """The runs of a client. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._open: set[int] = set()

    def begin(self) -> Run:
        """A new run."""
        with self._lock:
            self._last += 1
            self._open.add(self._last)
            return Run(self._last, min(self._open))

    def end(self, run: Run) -> None:
        """The run is over: it has no more attempts."""
        with self._lock:
            self._open.discard(run.number)
