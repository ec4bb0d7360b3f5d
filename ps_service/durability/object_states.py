"""Reads the state of an owner's objects."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
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

    `patience` is the total time in seconds to wait for locks that running code holds; None if no code is running. With
    None, states are returned without a copy, and must be stored before anything changes.
    """

    def __init__(self, engine: Engine, patience: float | None) -> None:
        self._engine = engine
        self._until = None if patience is None else time.monotonic() + patience

    def of(self, hosted: HostedObject) -> Any:
        """The result of an object's `state_dict`.

        Raises `CannotBeKept` if it has none, that method raised, or hosted code held its locks too long.
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
    """Reads the states of an owner that goes on running, while no optimizer steps: see `no_steps`."""

    def of(self, hosted: HostedObject) -> Any:
        """The result of an object's `state_dict`. That of an optimizer is no copy.

        Raises `CannotBeKept` if it has none, or that method raised, and `StillBusy` if hosted code held its locks too
        long.
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

    Raises `StillBusy` if steps that are being applied take longer than `patience` seconds in all.
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
    state: Future[Any] = Future()

    def run() -> None:
        try:
            state.set_result(_tried(read))
        except CannotBeKept as error:
            state.set_exception(error)

    threading.Thread(target=run, name="ps-checkpoint", daemon=True).start()
    try:
        return state.result(seconds)
    except TimeoutError:
        raise _OutOfTime("its state could not be read because hosted code is still running") from None
