"""Owned: the states of an owner's objects, as they are in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from ps_service.training import steps
from ps_service.training.optimizers import HostedOptimizer, HostedScheduler

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject


class CannotBeKept(Exception):
    """An object has no state that could be written down; the message says why."""


class States:
    """Reads states, in one thread.

    Args:
        engine: The owner.
        patience: Seconds that code which still runs may hold up all of it together; None if there is no such code. Then
            states are read without a copy, and must be stored before anything changes.
    """

    def __init__(self, engine: Engine, patience: float | None) -> None:
        self._engine = engine
        self._until = None if patience is None else time.monotonic() + patience

    def of(self, hosted: HostedObject) -> Any:
        """What `state_dict` gives of an object.

        Raises:
            CannotBeKept: It has none, or it could not be had.
        """
        read = self._reader(hosted)
        if self._until is None:
            return _tried(read)
        return _within(max(self._until - time.monotonic(), 0.0), read)

    def _reader(self, hosted: HostedObject) -> Callable[[], Any]:
        value = hosted.value
        if isinstance(value, (nn.Module, HostedOptimizer, HostedScheduler)):
            if self._until is not None:
                return lambda: steps.state_of(self._engine, hosted)
            if isinstance(value, nn.Module):
                return value.state_dict
            return value.optimizer.state_dict if isinstance(value, HostedOptimizer) else value.scheduler.state_dict
        read: Callable[[], Any] | None = getattr(value, "state_dict", None)
        if read is None or not callable(getattr(value, "load_state_dict", None)):
            raise CannotBeKept("its class has no state_dict and load_state_dict")
        return read


def _tried(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except BaseException as error:  # whatever hosted code raises ends nothing here
        raise CannotBeKept(f"its state_dict raised {error!r}") from error


def _within(seconds: float, read: Callable[[], Any]) -> Any:
    """What a function gives, if it does so in time; if not, its thread is left to itself."""
    found: list[Any] = []
    failed: list[CannotBeKept] = []

    def run() -> None:
        try:
            found.append(_tried(read))
        except CannotBeKept as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="ps-checkpoint", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise CannotBeKept("code that still runs has kept its state from being read")
    return found[0]
