"""Reads the state of an owner's objects, and sets buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ps_service.execution.in_time import in_time
from ps_service.training import state_dicts
from ps_service.training.no_steps import StillBusy
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.schedulers import HostedScheduler

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject


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


def _tried(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except BaseException as error:  # hosted code may raise anything
        raise CannotBeKept(f"its state_dict raised {error!r}") from error


def within(until: float, read: Callable[[], Any]) -> Any:
    """The result of a function, if it returns in time; if not, its thread is left running."""
    try:
        return in_time(until, partial(_tried, read))
    except TimeoutError:
        raise OutOfTime("its state could not be read because hosted code is still running") from None


def steps_of(module: HostedObject) -> dict[str, int]:
    """How many steps were applied to the parameters of a module, by name; without those that have had none."""
    pairs = zip(module.parameters, module.parameter_states, strict=True)
    return {name: state.steps for name, state in pairs if state.steps}


def set_steps(module: HostedObject, steps: Mapping[str, int]) -> None:
    """Counts on from what `steps_of` has returned, and tells whoever follows the parameters that they have the values
    of then. Replicas have such numbers, and push them with their gradients."""
    for name, state in zip(module.parameters, module.parameter_states, strict=True):
        state.steps = steps.get(name, state.steps)
        state.tell()


def buffers_of(module: HostedObject) -> dict[str, Tensor | None]:
    """Copies of the buffers of a module that its state has, by name. Those that are None are there, too."""
    kept = module.value.state_dict(keep_vars=True).keys()
    found: dict[str, Tensor | None] = {}
    with ExitStack() as stack:
        for lock in module.internals.norm_locks.values():
            stack.enter_context(lock)
        for path, part in module.value.named_modules():
            for leaf, each in part._buffers.items():
                name = f"{path}.{leaf}" if path else leaf
                if each is None:
                    found[name] = None
                elif name in kept:
                    found[name] = each.detach().clone()
    return found


def set_buffers(module: nn.Module, values: Mapping[str, Tensor | None], device: torch.device) -> None:
    """Gives buffers of a module their values. Code may have put another tensor, or None, in the place of what the
    constructor has made. Where that fits it is written to, because other places may have the same tensor; one that is
    new is on the `device`."""
    written: dict[int, Tensor] = {}
    for name, value in values.items():
        path, _, leaf = name.rpartition(".")
        buffers = part_of(module, path)._buffers
        made = buffers.get(leaf)
        if value is None:
            buffers[leaf] = None
        elif made is None or made.shape != value.shape or made.dtype != value.dtype:
            buffers[leaf] = value.to(device if made is None else made.device, copy=True)
        elif (before := written.get(id(made))) is not None and not torch.equal(before, value):
            buffers[leaf] = value.to(made.device, copy=True)  # it was one tensor with another place, and is no more
        else:
            made.copy_(value)
            written[id(made)] = value


def part_of(module: nn.Module, path: str) -> nn.Module:
    """A part of a module; another one if it has none there."""
    try:
        return module.get_submodule(path)
    except AttributeError:
        return nn.Module()
