"""Values that members change through references, and functions that do so."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ps_service import async_execution, by_value, hosted, remote
from trainer_client import rpc
from trainer_client.nn import RemoteModule

TABLE: dict[str, Any] = {}
ORDERED: OrderedDict[str, int] = OrderedDict(a=1)
TENSOR = torch.zeros(3)
LEAF = torch.zeros(3, requires_grad=True)
CIRCLE: list[Any] = [1]
CIRCLE.append(CIRCLE)
CANNOT_BE_SENT: list[Any] = [object(), {1, 2}]
SEEN: list[int] = []
"""`id()` of the values that `show` was called with."""


@by_value
@dataclass
class Box:
    items: list[Any] = field(default_factory=list)
    tensor: torch.Tensor = field(default_factory=lambda: torch.zeros(2))

    @remote
    def put(self, item: Any) -> int:
        self.items.append(item)
        return len(self.items)


@remote
def set_item(rref: rpc.RRef, key: Any, value: Any) -> None:
    rref.local_value()[key] = value


@remote
def append(rref: rpc.RRef, value: Any) -> int:
    found = rref.local_value()
    (found.items if isinstance(found, Box) else found).append(value)
    return len(found.items if isinstance(found, Box) else found)


@remote
def add_one(rref: rpc.RRef, *path: Any) -> None:
    """Adds one, in place, to a tensor inside the value."""
    found = rref.local_value()
    for key in path:
        found = found[key]
    found.detach().add_(1)


@remote
def is_global(rref: rpc.RRef, name: str) -> bool:
    return rref.local_value() is globals()[name]


@remote
def show(rref: rpc.RRef) -> None:
    SEEN.append(id(rref.local_value()))


@remote
def show_to(to: str, rref: rpc.RRef) -> None:
    rpc.rpc_sync(to, show, args=(rref,))


@remote
def change_at(to: str, rref: rpc.RRef, key: str) -> None:
    rpc.rpc_sync(to, set_item, args=(rref, key, 1))


@remote
def fetched(rref: rpc.RRef) -> Any:
    return rref.to_here()


@remote
def sum_of(rref: rpc.RRef, key: str) -> torch.Tensor:
    return rref.local_value()[key].sum()


@remote
def is_same(one: rpc.RRef, other: rpc.RRef) -> bool:
    return one.local_value() is other.local_value()


@remote
def a_global(name: str) -> Any:
    return globals()[name]


@remote
def rref_of_global(name: str) -> rpc.RRef:
    return rpc.RRef(globals()[name])


@remote
@async_execution
def global_later(name: str) -> rpc.Future[Any]:
    done: rpc.Future[Any] = rpc.Future()
    done.set_result(globals()[name])
    return done


@remote
def twice_in(found: dict[str, torch.Tensor], x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**found, "twice": x * 2}


@hosted
class Cache:
    """Gives references to what it keeps."""

    def __init__(self) -> None:
        self.cache: dict[str, Any] = {"layers": [torch.zeros(2), (torch.zeros(2),)]}

    @remote
    def reference(self) -> rpc.RRef:
        return rpc.RRef(self.cache)

    @remote
    def itself(self) -> dict[str, Any]:
        return self.cache

    @remote
    def is_it(self, rref: rpc.RRef) -> bool:
        return rref.local_value() is self.cache

    @remote
    def keys(self) -> list[str]:
        return list(self.cache)


@hosted
class Recorder(nn.Module):
    """A module that keeps a log, a table of its layers, a buffer and a parameter."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.register_buffer("steps", torch.zeros(2))
        self.log: list[Any] = []
        self.layers = {"fc": self.fc, "count": 0}

    @remote
    def itself(self, name: str) -> Any:
        return getattr(self, name)

    @remote
    def reference(self, name: str) -> rpc.RRef:
        return rpc.RRef(getattr(self, name))

    @remote
    def in_a_list(self, name: str) -> list[Any]:
        found = self.fc.weight if name == "weight" else getattr(self, name)
        return [found.detach()[0:]]

    @remote
    def forward_nothing(self) -> None:
        return None

    @remote
    def length(self) -> int:
        return len(self.log)


@remote
def steps_of(module: rpc.RRef) -> list[torch.Tensor]:
    """A buffer of a module that the function gets a reference to."""
    return [module.local_value().steps]


@remote
def count_of(rref: rpc.RRef) -> int:
    return int(rref.local_value()["count"])


@remote
def twice_and_thrice(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * 2, x * 3]


@remote
def reverse(rref: rpc.RRef) -> None:
    rref.local_value().reverse()


@remote
def first_of(rref: rpc.RRef) -> torch.Tensor:
    return rref.local_value()[0].sum()


@remote
def mode_of(module: RemoteModule) -> bool:
    return module.training


@remote
def mode_behind(rref: rpc.RRef) -> bool:
    """The mode in which a function finds a module, and all that is inside it."""
    modes = {each.training for each in rref.local_value().modules()}
    assert len(modes) == 1
    return modes.pop()


@remote
def set_mode(rref: rpc.RRef, mode: bool, part: str = "") -> None:
    rref.local_value().get_submodule(part).train(mode)


@remote
def modes_behind(rref: rpc.RRef) -> list[bool]:
    return [each.training for each in rref.local_value().modules()]
