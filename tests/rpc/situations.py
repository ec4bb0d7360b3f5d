"""What the members of the group in these tests call on each other."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ps_service import async_execution, by_value, hosted, remote
from ps_wire.refs import Ref
from tests.rpc.differentiable import (
    LEAF,
    call_on_module,
    complex_args,
    fails_in_backward,
    forward_module,
    gradient_of_leaf,
    gradient_sum,
    gradients_of_hosted,
    leaf_of_this_process,
    my_add,
    my_mul_nested,
    parameter_rrefs,
    ps_trainer,
    split_in_three,
    unused_second,
)
from tests.rpc.held_up import (
    EVENTS,
    KEPT,
    begun,
    for_ever,
    has_called,
    how_it_ended,
    let_go,
    nested_wait,
    seconds_of_a_nested_call,
    wait_for,
)
from tests.rpc.later import (
    FUTURES,
    async_add,
    async_chained,
    async_fails,
    async_fanout,
    async_fanout_of_torch,
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
    FailingAtOnce,
    FailingOptimizer,
    Fork,
    Late,
    Lookup,
    Plain,
    Scale,
    Table,
)
from tests.rpc.referring import (
    add_rrefs,
    call_method,
    forward_rref,
    make_rref,
    owner_of,
    remote_rref,
    to_here_of,
    value_of,
)
from trainer_client import autograd, rpc

__all__ = [
    "EVENTS",
    "FUTURES",
    "KEPT",
    "LEAF",
    "Chain",
    "FailingAtOnce",
    "FailingOptimizer",
    "Fork",
    "Late",
    "Lookup",
    "Plain",
    "Scale",
    "Table",
    "add_rrefs",
    "async_add",
    "async_chained",
    "async_fails",
    "async_fanout",
    "async_fanout_of_torch",
    "async_let_go",
    "async_multi_chained",
    "async_nested",
    "async_raises",
    "async_until",
    "async_with_torchs_future",
    "async_wrong_type",
    "begun",
    "borrows_in_a_callback",
    "call_method",
    "call_on_module",
    "calls_in_a_callback",
    "complex_args",
    "fails_in_backward",
    "for_ever",
    "forward_module",
    "forward_rref",
    "gradient_of_leaf",
    "gradient_sum",
    "gradients_of_hosted",
    "has_called",
    "how_it_ended",
    "leaf_of_this_process",
    "let_go",
    "make_rref",
    "my_add",
    "my_mul_nested",
    "nested_wait",
    "owner_of",
    "parameter_rrefs",
    "ps_trainer",
    "remote_rref",
    "returns_a_future",
    "seconds_of_a_nested_call",
    "split_in_three",
    "to_here_of",
    "unused_second",
    "value_of",
    "wait_for",
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
def nothing() -> None:
    return None


@remote
def whoami() -> int:
    return rpc.get_worker_info().id


@remote
def my_name() -> str:
    return rpc.get_worker_info().name


@remote
def in_a_block(x: torch.Tensor) -> torch.Tensor:
    with torch.profiler.record_function("a block"):
        return x + 1


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
def threads() -> int:
    return threading.active_count()


# References


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
def seen_contexts() -> int:
    from trainer_client.rpc.current import agent

    return len(agent().engine.contexts)


@remote
def call_kept(name: str, method: str, *args: Any) -> Any:
    return getattr(KEPT[name].rpc_sync(), method)(*args)


@remote
def knows_context(context_id: int) -> bool:
    try:
        autograd.get_gradients(context_id)
    except RuntimeError:
        return False
    return True


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
