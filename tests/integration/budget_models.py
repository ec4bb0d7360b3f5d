"""What the owners of `test_budgets.py` host."""

from __future__ import annotations

import concurrent.futures
import threading

import torch

from ps_service import async_execution, hosted, remote
from ps_wire.runtime.scopes import current_scope


class _Nested:
    """Stands for a request that hosted code has made."""

    def cancel(self) -> None:
        """Returns a future, so that no thread waits."""


@hosted
class Crossing:
    """Holds callers up until it is opened, or until enough have come."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.lock = threading.Lock()
        self.inside = 0
        self.future: concurrent.futures.Future[int] = concurrent.futures.Future()

    def _enter(self) -> int:
        with self.lock:
            self.inside += 1
            return self.inside

    @remote
    def hold(self, x: torch.Tensor) -> int:
        self._enter()
        assert self.opened.wait(30)
        return x.numel()

    @remote
    def ask_others(self, x: torch.Tensor) -> int:
        """Waits for others, who are asked by a request of its own."""
        self._enter()
        scope = current_scope.get()
        assert scope is not None
        nested = _Nested()
        scope.add(nested)
        assert self.opened.wait(30)
        return x.numel()

    @remote
    @async_execution
    def rendezvous(self, x: torch.Tensor, expected: int) -> concurrent.futures.Future[int]:
        """Answers when so many have come."""
        if self._enter() == expected:
            self.future.set_result(expected)
        return self.future

    @remote(inline=True)
    def open(self) -> None:
        self.opened.set()

    @remote
    def bytes(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)
