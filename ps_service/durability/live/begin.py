"""What a checkpoint has of an owner at the position at which its log goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from ps_service.durability import prepared_steps, rounds
from ps_service.durability.books import Bookkeeping, NotNowError, books_of_running
from ps_service.durability.live.parts import (
    Copies,
    Part,
    Scratch,
    is_divisible,
    objects_of,
    parts_of,
    room_for,
    visible,
)
from ps_service.durability.live.slots import Slotted, States
from ps_service.durability.object_states import CannotBeKept, OutOfTime, steps_of, within
from ps_service.durability.run_records import runs_of
from ps_service.tables.naming import ids_in
from ps_service.tables.optimizer import RowOptimizer
from ps_service.training.copies import copied
from ps_service.training.no_steps import StillBusy
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.schedulers import HostedScheduler

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from ps_service.durability.live.quiescence import Quiescence
    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject
    from ps_wire.v1 import checkpoint_pb2 as pb

OnLoop = Callable[[Callable[[], Bookkeeping], float], Bookkeeping]
"""Calls a function on the event loop of the owner; raises `TimeoutError` if that takes more seconds."""

_LOOP_SECONDS: Final = 0.05
"""Seconds to wait for the event loop, which may itself wait for the turn of the log."""

_PATIENCE_SECONDS: Final = 10.0


@dataclass
class Beginning:
    """The books of an owner and its objects at a position of the log. `states` are those of optimizers and schedulers
    by object id, or why there is none; `rounds` those of optimizers by number; `steps` has how many were applied to
    the parameters of each module; `prepared` are steps over several owners. `parts` has the parameters, those of
    `whole` with copies: they cannot be read one after the other. `tables` has what tables have besides rows, and `ids`
    those of their rows."""

    position: int
    books: Bookkeeping
    objects: list[HostedObject]
    parts: dict[int, Part]
    runs: list[pb.RunRecord] = field(default_factory=list)
    states: dict[str, Any] = field(default_factory=dict)
    rounds: dict[int, rounds.Read] = field(default_factory=dict)
    steps: dict[str, dict[str, int]] = field(default_factory=dict)
    prepared: list[prepared_steps.Read] = field(default_factory=list)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    ids: dict[str, torch.Tensor] = field(default_factory=dict)
    whole: dict[int, Copies] = field(default_factory=dict)

    def optimizers(self) -> list[HostedOptimizer]:
        """The optimizers."""
        return [each.value for each in self.objects if isinstance(each.value, HostedOptimizer)]


def begin(engine: Engine, still: Quiescence, on_loop: OnLoop) -> Beginning:
    """Reads it between two records of the log. Raises `StillBusy` if hosted code or steps take too long."""
    until = time.monotonic() + _PATIENCE_SECONDS
    odd: dict[str, bool] = {}
    while time.monotonic() < until:
        for hosted in objects_of(engine):
            if hosted.is_module and hosted.ref.object_id not in odd:
                odd[hosted.ref.object_id] = _is_odd(hosted)
        optimizers = [each.value for each in objects_of(engine) if isinstance(each.value, HostedOptimizer)]
        with still.held(filter(_is_whole, optimizers)) as position:
            objects = objects_of(engine)
            modules = [each for each in objects if each.is_module]
            known = {each.number for each in optimizers}
            if not all(each.ref.object_id in odd for each in modules) or not all(
                each.value.number in known for each in objects if isinstance(each.value, HostedOptimizer)
            ):
                continue  # they were made meanwhile
            try:
                books = on_loop(partial(books_of_running, engine, position), _LOOP_SECONDS)
            except (TimeoutError, NotNowError):
                continue
            books.message.position, books.message.code = position, still.code
            found = Beginning(position, books, objects, {})
            _read(engine, found, {each for each, is_odd in odd.items() if is_odd})
            return found
    raise StillBusy("the owner is too busy to begin a checkpoint")


def _is_whole(optimizer: HostedOptimizer) -> bool:
    return not (is_divisible(optimizer) or isinstance(optimizer.optimizer, RowOptimizer))


def _is_odd(hosted: HostedObject) -> bool:
    """Whether the state of a module has its parameters in another form."""
    until = time.monotonic() + _PATIENCE_SECONDS
    try:
        state: dict[str, Any] = within(until, partial(hosted.value.state_dict, keep_vars=True))
    except OutOfTime:
        raise StillBusy(f"the state of {hosted} could not be read, because hosted code is running in it") from None
    except CannotBeKept:
        return False  # it will be left out
    there = set(map(id, state.values()))
    return not all(id(each) in there for each in hosted.parameters.values())


def _read(engine: Engine, found: Beginning, odd: Iterable[str]) -> None:
    objects = found.objects
    found.runs.extend(runs_of(engine, objects))
    found.prepared.extend(prepared_steps.read(engine))
    for hosted in objects:
        value, object_id = hosted.value, hosted.ref.object_id
        if isinstance(value, HostedOptimizer):
            now = rounds.read(value)
            found.rounds[value.number] = now._replace(total=copied(now.total))
            found.states[object_id] = _tried(partial(_state_of_optimizer, value))
        elif isinstance(value, HostedScheduler):
            found.states[object_id] = _tried(value.scheduler.state_dict)
        elif hosted.is_table:
            found.tables[object_id] = {**value.state_dict(), "blocks": ()}
            found.ids[object_id] = ids_in(value.shard)
    modules = [each for each in objects if each.is_module]
    found.steps.update((each.ref.object_id, steps_of(each)) for each in modules)
    found.parts.update(parts_of(modules, filter(is_divisible, found.optimizers())))
    whole = [
        *(parameter for each in modules if each.ref.object_id in odd for parameter in each.parameters.values()),
        *(parameter for each in filter(_is_whole, found.optimizers()) for parameter in each.parameters),
    ]
    parts = {id(each): found.parts[id(each)] for each in whole if id(each) in found.parts}
    scratch = Scratch()
    scratch.reserve(room_for(parts.values()))
    for key, part in parts.items():
        found.whole[key] = scratch.copies(part, visible(engine, part))
    for hosted in modules:
        if hosted.ref.object_id in odd:
            found.states[hosted.ref.object_id] = _tried(hosted.value.state_dict)


def _state_of_optimizer(value: HostedOptimizer) -> dict[str, Any]:
    state: dict[str, Any] = value.optimizer.state_dict()
    if not is_divisible(value):
        return state
    return Slotted({name: States(value) if name == "state" else copied(each) for name, each in state.items()})


def _tried(read: Callable[[], Any]) -> Any:
    """A copy of the result of a function, or why there is none."""
    done: Future[Any] = Future()
    try:
        state = read()
        done.set_result(state if isinstance(state, Slotted) else copied(state))
    except Exception as error:  # hosted code may raise anything
        done.set_exception(CannotBeKept(f"its state_dict raised {error!r}"))
    return done


def module_state(hosted: HostedObject, parts: dict[int, Part]) -> Slotted:
    """The state of a module, with parts in the place of its parameters."""

    def read() -> Slotted:
        module: nn.Module = hosted.value
        with hosted.internals.quiet():
            own = module.state_dict(keep_vars=True)
            return Slotted({name: parts.get(id(value)) or copied(value) for name, value in own.items()})

    try:
        state: Slotted = within(time.monotonic() + _PATIENCE_SECONDS, read)
    except OutOfTime:
        raise StillBusy(f"the state of {hosted} could not be read, because hosted code is running in it") from None
    return state
