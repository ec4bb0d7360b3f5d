"""Reads the state of an owner's objects."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from ps_service.training import state_dicts
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.schedulers import HostedScheduler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject


class StillBusy(Exception):
    """Hosted code holds what would have to be read; the message says where."""


class CannotBeKept(Exception):
    """An object's state cannot be saved; the message says why."""


class _OutOfTime(CannotBeKept):
    """Hosted code held locks too long."""


class States:
    """Reads the states of objects, from one thread.

    Args:
        engine: The owner.
        patience: Total seconds to wait for locks that running code holds; None if no code is running. With None, states
            are returned without a copy, and must be stored before anything changes.
    """

    def __init__(self, engine: Engine, patience: float | None) -> None:
        self._engine = engine
        self._until = None if patience is None else time.monotonic() + patience

    def of(self, hosted: HostedObject) -> Any:
        """The result of an object's `state_dict`.

        Raises:
            CannotBeKept: It has no `state_dict`, that method raised, or hosted code held its locks too long.
        """
        read = self._reader(hosted)
        if self._until is None:
            return _tried(read)
        return _within(max(self._until - time.monotonic(), 0.0), read)

    def _reader(self, hosted: HostedObject) -> Callable[[], Any]:
        value = hosted.value
        if isinstance(value, (nn.Module, HostedOptimizer, HostedScheduler)):
            if self._until is not None:
                return lambda: state_dicts.state_of(self._engine, hosted)
            if isinstance(value, nn.Module):
                return value.state_dict
            return value.optimizer.state_dict if isinstance(value, HostedOptimizer) else value.scheduler.state_dict
        read: Callable[[], Any] | None = getattr(value, "state_dict", None)
        if read is None or not callable(getattr(value, "load_state_dict", None)):
            raise CannotBeKept("its class has no state_dict and load_state_dict")
        return read


class LiveStates(States):
    """Reads the states of an owner that goes on running, while no optimizer steps: see `no_steps`.

    Args:
        engine: The owner.
        patience: Total seconds to wait for hosted code.
    """

    def __init__(self, engine: Engine, patience: float) -> None:
        super().__init__(engine, patience)

    def of(self, hosted: HostedObject) -> Any:
        """The result of an object's `state_dict`. That of an optimizer is no copy.

        Raises:
            CannotBeKept: It has no `state_dict`, or that method raised.
            StillBusy: Hosted code held its locks too long.
        """
        if isinstance(hosted.value, (HostedOptimizer, HostedScheduler)):
            # In this thread, which holds the locks of optimizers.
            value = hosted.value
            return _tried(value.optimizer.state_dict if isinstance(value, HostedOptimizer) else value.state_dict)
        if hosted.is_table:
            table: Any = hosted.value
            return table.state_copy()
        try:
            return super().of(hosted)
        except _OutOfTime:
            raise StillBusy(f"the state of {hosted} could not be read, because hosted code is running in it") from None


@contextmanager
def no_steps(objects: Iterable[HostedObject], patience: float) -> Iterator[None]:
    """Lets the optimizers among these objects apply no step while the block runs. Steps wait; passes go on.

    Args:
        objects: The objects.
        patience: Total seconds to wait for steps that are being applied.

    Raises:
        StillBusy: One of them took longer.
    """
    until = time.monotonic() + patience
    optimizers = [(each.value, each) for each in objects if isinstance(each.value, HostedOptimizer)]
    with ExitStack() as stack:
        # In the order of steps that apply to several optimizers at once.
        for optimizer, hosted in sorted(optimizers, key=lambda each: each[0].number):
            if not optimizer.lock.acquire(seconds=max(until - time.monotonic(), 0.0)):
                raise StillBusy(f"a step of {hosted} takes longer than {patience:g} s")
            stack.callback(optimizer.lock.release)
        yield


def _tried(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except BaseException as error:  # hosted code may raise anything
        raise CannotBeKept(f"its state_dict raised {error!r}") from error


def _within(seconds: float, read: Callable[[], Any]) -> Any:
    """The result of a function, if it returns in time; if not, its thread is left running."""
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
        raise _OutOfTime("its state could not be read because hosted code is still running")
    return found[0]
