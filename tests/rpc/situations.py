"""What the members of the group in these tests call on each other."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ps_service import async_execution, by_value, hosted, remote
from ps_wire.errors import ContextEndedError
from ps_wire.refs import Ref
from ps_wire.runtime.scopes import current_scope
from tests.rpc.later import (
    FUTURES,
    async_add,
    async_chained,
    async_fails,
    async_fanout,
    async_let_go,
    async_multi_chained,
    async_nested,
    async_raises,
    async_until,
    async_with_torchs_future,
    async_wrong_type,
    borrows_in_a_callback,
    calls_in_a_callback,
    returns_a_future,
    with_callback,
)
from tests.rpc.models import (
    Chain,
    Failing,
    FailingAtOnce,
    FailingOptimizer,
    Fork,
    Late,
    Lookup,
    Plain,
    Scale,
    Table,
)
from trainer_client import autograd, rpc
from trainer_client.nn import RemoteModule

__all__ = [
    "FUTURES",
    "Chain",
    "Failing",
    "FailingAtOnce",
    "FailingOptimizer",
    "Fork",
    "Late",
    "Lookup",
    "Plain",
    "Scale",
    "Table",
    "async_add",
    "async_chained",
    "async_fails",
    "async_fanout",
    "async_let_go",
    "async_multi_chained",
    "async_nested",
    "async_raises",
    "async_until",
    "async_with_torchs_future",
    "async_wrong_type",
    "borrows_in_a_callback",
    "calls_in_a_callback",
    "returns_a_future",
    "with_callback",
]  # situations that stand in rooms of their own

# Values


@by_value
@dataclass
class Parcel:
    """Travels by value, its methods by name."""

    tensor: torch.Tensor
    label: str = ""

    @remote
    def doubled(self) -> torch.Tensor:
        return self.tensor * 2


@by_value
class Pair(NamedTuple):
    left: Any
    right: Any


@hosted
class Keeper:
    """Keeps a number."""

    def __init__(self, number: int = 0, fail: bool = False) -> None:
        if fail:
            raise ValueError("it was told to fail")
        self.number = number
        self.tensor = torch.ones(2)

    @remote
    def add(self, more: int) -> int:
        self.number += more
        return self.number

    @remote
    def value(self) -> int:
        return self.number

    @remote
    def fail(self) -> None:
        raise RuntimeError("a method that fails")

    @remote
    @staticmethod
    def static(number: int) -> int:
        return number + 1

    @remote
    @classmethod
    def by_class(cls, number: int) -> str:
        return f"{cls.__name__} {number}"

    @remote
    @async_execution
    def add_later(self, to: str, x: torch.Tensor, y: torch.Tensor) -> rpc.Future[torch.Tensor]:
        return rpc.rpc_async(to, torch.add, args=(x, y)).then(lambda future: future.wait() + self.number)

    @remote
    @staticmethod
    @async_execution
    def static_later(to: str, x: torch.Tensor, y: torch.Tensor) -> rpc.Future[torch.Tensor]:
        return rpc.rpc_async(to, torch.add, args=(x, y)).then(lambda future: future.wait())

    @remote
    @classmethod
    @async_execution
    def class_later(cls, to: str, x: torch.Tensor, y: torch.Tensor) -> rpc.Future[torch.Tensor]:
        return rpc.rpc_async(to, torch.add, args=(x, y)).then(lambda future: future.wait())


# Functions


@remote
def my_add(x: Any, y: Any) -> Any:
    return x + y


@remote
def nothing() -> None:
    return None


@remote
def whoami() -> int:
    return rpc.get_worker_info().id


@remote
def my_name() -> str:
    return rpc.get_worker_info().name


@remote
def raises(text: str = "expected") -> None:
    raise ValueError(text)


@remote
def in_container(items: list[torch.Tensor], extra: dict[str, Any]) -> dict[str, Any]:
    return {"sum": sum(items[1:], items[0]), "extra": extra, "count": len(items)}


@remote
def many_loops(x: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        x = x * 1.01 + 1
    return x


@remote
def nested_add(to: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return rpc.rpc_sync(to, my_add, args=(x, y))


@remote
def nested_async(to: str, depth: int) -> int:
    if depth == 0:
        return 0
    here = rpc.get_worker_info().name
    return 1 + rpc.rpc_async(to, nested_async, args=(here, depth - 1)).wait()


@remote
def for_ever() -> None:
    rpc.rpc_sync(rpc.get_worker_info().name, for_ever)


@remote
def wait_for(event: str, seconds: float = 60.0) -> bool:
    EVENTS.setdefault(f"{event} begun", threading.Event()).set()
    return EVENTS.setdefault(event, threading.Event()).wait(seconds)


@remote
def nested_wait(to: str, event: str) -> None:
    try:
        rpc.rpc_sync(to, wait_for, args=(event,), timeout=0)
    except Exception as error:
        KEPT[event] = type(error).__name__
        raise
    finally:
        let_go(f"{event} ended")


@remote
def how_it_ended(event: str) -> str:
    wait_for(f"{event} ended", 20)
    return KEPT[event]


@remote
def seconds_of_a_nested_call() -> float:
    """How long a call that is made here, and asks for a minute, may take."""
    scope = current_scope.get()
    assert scope is not None
    seconds = scope.within(60.0)
    assert seconds is not None
    return seconds


@remote
def let_go(event: str) -> None:
    EVENTS.setdefault(event, threading.Event()).set()


@remote
def begun(event: str) -> bool:
    return EVENTS.setdefault(f"{event} begun", threading.Event()).wait(20)


EVENTS: dict[str, threading.Event] = {}


@remote
def threads() -> int:
    return threading.active_count()


# References


@remote
def value_of(rref: rpc.RRef) -> Any:
    return rref.local_value()


@remote
def to_here_of(rref: rpc.RRef) -> Any:
    return rref.to_here()


@remote
def add_rrefs(x: rpc.RRef, y: Any) -> Any:
    return x.to_here() + (y.to_here() if isinstance(y, rpc.RRef) else y)


@remote
def make_rref(value: Any) -> rpc.RRef:
    return rpc.RRef(value)


@remote
def remote_rref(to: str, x: torch.Tensor, y: Any) -> rpc.RRef:
    """A reference to something a third member has."""
    return rpc.remote(to, my_add, args=(x, y))


@remote
def forward_rref(rref: rpc.RRef, *via: str) -> Any:
    """Passes a reference on, from member to member, and looks at its value at the end."""
    return rpc.rpc_sync(via[0], forward_rref, args=(rref, *via[1:])) if via else rref.to_here()


@remote
def owner_of(rref: rpc.RRef) -> str:
    return rref.owner_name()


@remote
def call_method(rref: rpc.RRef, method: str, *args: Any) -> Any:
    return getattr(rref.rpc_sync(), method)(*args)


KEPT: dict[str, Any] = {}


@remote
def keep(name: str, value: Any) -> None:
    KEPT[name] = value


@remote
def kept(name: str) -> Any:
    value = KEPT[name]
    return value.to_here() if isinstance(value, rpc.RRef) else value


@remote
def drop(name: str) -> None:
    del KEPT[name]


# Autograd


@remote
def parameter_rrefs(module: rpc.RRef) -> list[rpc.RRef]:
    return [rpc.RRef(parameter) for parameter in module.local_value().parameters()]


@remote
def call_on_module(method: Any, module: rpc.RRef, *args: Any) -> Any:
    return method(module.local_value(), *args)


@remote
def my_mul_nested(to: str, back: str, x: torch.Tensor, y: torch.Tensor, depth: int) -> torch.Tensor:
    if depth == 0:
        return x * y
    return rpc.rpc_sync(to, my_mul_nested, args=(back, to, x, y, depth - 1)) + y


@remote
def gradient_sum(context_id: int) -> float:
    return float(sum(gradient.sum() for gradient in autograd.get_gradients(context_id).values()))


@remote
def fails_in_backward(x: torch.Tensor) -> torch.Tensor:
    return Failing.apply(x)


@remote
def unused_second(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 3


@remote
def split_in_three(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.split(x, 2)


@remote
def seen_contexts() -> int:
    from trainer_client.rpc.current import agent

    return len(agent().engine.contexts)


@remote
def call_kept(name: str, method: str, *args: Any) -> Any:
    return getattr(KEPT[name].rpc_sync(), method)(*args)


@remote
def forward_module(module: RemoteModule, x: torch.Tensor) -> torch.Tensor:
    return module.forward(x)


@remote
def gradients_of_hosted(context_id: int) -> list[torch.Tensor]:
    return list(autograd.get_gradients(context_id).values())


LEAF = torch.ones(3, 3, requires_grad=True)


@remote
def leaf_of_this_process() -> torch.Tensor:
    return LEAF


@remote
def gradient_of_leaf(context_id: int) -> torch.Tensor:
    return autograd.get_gradients(context_id)[LEAF]


@remote
def knows_context(context_id: int) -> bool:
    try:
        autograd.get_gradients(context_id)
    except (RuntimeError, ContextEndedError):
        return False
    return True


@remote
def complex_args(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(tensors)


@remote
def ps_trainer(x: rpc.RRef, owner: str) -> torch.Tensor:
    """A whole pass that a call from another process runs; returns the gradient of its argument."""
    with autograd.context() as context_id:
        value = x.to_here().requires_grad_()
        y = rpc.rpc_sync(owner, my_add, args=(value, value))
        autograd.backward(context_id, [(y.to_dense() if y.is_sparse else y).sum()])
        (gradient,) = autograd.get_gradients(context_id).values()
        return gradient


@remote
def add_values(x: rpc.RRef, y: rpc.RRef) -> Any:
    return x.local_value() + y.local_value()


@remote
def barrier_of(names: list[str], timeout: float = 20.0) -> None:
    rpc.barrier(names, timeout)


@remote
def gather_of(value: Any, names: list[str]) -> dict[str, Any]:
    return rpc.all_gather(value, names, 20.0)


@remote
def keep_rref(name: str, value: Any) -> None:
    KEPT[name] = rpc.RRef(value)


@remote
def kept_rref(name: str) -> rpc.RRef:
    return KEPT[name]


@remote
def remote_and_keep(to: str, name: str) -> rpc.RRef:
    KEPT[name] = rpc.remote(to, Keeper, args=(5,))
    return KEPT[name]


@remote
def is_there(reference: str) -> bool:
    from trainer_client.rpc.current import agent

    return Ref.parse(reference).object_id in {each.ref.object_id for each in agent().engine.registry.objects()}


@remote
def first_of_pair(to: str, third: str) -> Any:
    """Asks for an answer that hands out a reference of a third member."""
    return rpc.rpc_sync(to, remote_rref, args=(third, 1, 2)).to_here()


@by_value
@dataclass
class Fussy:
    """Cannot be made where it arrives."""

    fine: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if rpc.get_worker_info().name != "worker0":
            raise OSError("not here")


@remote
def call_everybody(names: list[str], depth: int = 1) -> int:
    if depth == 0:
        return len([rpc.rpc_sync(name, my_name) for name in names])
    futures = [rpc.rpc_async(name, call_everybody, args=(names, depth - 1)) for name in names]
    return sum(rpc.wait_all(futures))


@remote
def scaled_value(rref: rpc.RRef, factor: float) -> torch.Tensor:
    return rref.to_here() * factor


@remote
def directory_of() -> str:
    """Where this member found the directory."""
    from trainer_client.rpc.current import agent

    return next(each.address for each in agent().client.status("worker0").wait().members if each.name == "worker0")
