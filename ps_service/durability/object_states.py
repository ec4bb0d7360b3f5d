"""Reads the state of an owner's objects."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

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


class OutOfTime(CannotBeKept):
    """Hosted code held locks too long."""


def state_of(engine: Engine, until: float | None, hosted: HostedObject) -> Any:
    """The result of an object's `state_dict`, on an owner that takes no more requests. Raises `CannotBeKept`.

    Locks that running code holds are waited for until a moment on the monotonic clock. With None no code is running:
    then it is no copy, and must be stored before anything changes.
    """
    value = hosted.value
    if isinstance(value, (nn.Module, HostedOptimizer, HostedScheduler)):
        if until is not None:
            return within(until, partial(state_dicts.state_of, engine, hosted))
        if isinstance(value, HostedOptimizer):
            return _tried(value.optimizer.state_dict)
        return _tried(value.scheduler.state_dict if isinstance(value, HostedScheduler) else value.state_dict)
    if not hosted.has_state:
        raise CannotBeKept("its class has no state_dict and load_state_dict")
    read: Callable[[], Any] = value.state_dict
    return _tried(read) if until is None else within(until, read)


def live_state_of(engine: Engine, until: float, hosted: HostedObject) -> Any:
    """The same on an owner that goes on, while no optimizer steps: see `no_steps`. That of an optimizer is no copy.

    Raises `StillBusy` if hosted code holds the locks too long.
    """
    value: Any = hosted.value
    # In this thread, which holds the locks of optimizers.
    if isinstance(value, HostedOptimizer):
        return _tried(value.optimizer.state_dict)
    if isinstance(value, HostedScheduler):
        return _tried(value.state_dict)
    if hosted.is_table:
        return value.state_copy()
    try:
        return state_of(engine, until, hosted)
    except OutOfTime:
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


def within(until: float, read: Callable[[], Any]) -> Any:
    """The result of a function, if it returns in time; if not, its thread is left running."""
    state: Future[Any] = Future()

    def run() -> None:
        try:
            state.set_result(_tried(read))
        except CannotBeKept as error:
            state.set_exception(error)

    threading.Thread(target=run, name="ps-checkpoint", daemon=True).start()
    try:
        return state.result(max(until - time.monotonic(), 0.0))
    except TimeoutError:
        raise OutOfTime("its state could not be read because hosted code is still running") from None


def buffers_of(module: HostedObject) -> dict[str, Tensor]:
    """Copies of the buffers of a module that its state has, by name."""
    kept = module.value.state_dict(keep_vars=True).keys()
    with ExitStack() as stack:
        for lock in module.internals.norm_locks.values():
            stack.enter_context(lock)
        return {name: each.detach().clone() for name, each in module.value.named_buffers() if name in kept}
