"""Hosted modules whose calls move their layers and parameters to other attributes and containers."""

from __future__ import annotations

import functools
import weakref
from collections import deque
from typing import Any

import torch
from torch import nn

from ps_service import hosted, remote

SIZE = 4


class Stage:
    """A helper object around a layer, which counts."""

    def __init__(self, layer: Any) -> None:
        self.layer, self.used = layer, 0


class Used:
    """A helper object that leads nowhere at first."""

    def __init__(self) -> None:
        self.layers: list[Any] = []


@hosted
class Restructuring(nn.Module):
    """Two layers, one of which each call computes with; which one depends on what the earlier calls have left.

    Args:
        way: What leads to the layer.
        hooked: Whether a hook of a layer keeps the graph of each call.
    """

    def __init__(self, way: str, hooked: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.way = way
        self.next: Any = [self.a]
        self.stages: Any = None
        self.run: Any = None
        self.used: Any = {"list": [], "set": set(), "deque": deque(), "helper": Used(), "dict": {}}.get(way)
        self.stats: Any = {self.a: 0, self.b: 0}
        self.counts: Any = dict.fromkeys(self.parameters(), 0)
        self.record: Any = [self.a.weight, 0]
        if hooked:
            self.a.register_full_backward_hook(lambda module, inputs, outputs: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(WAYS[self.way](self, x))

    @remote
    def seen(self) -> list[int]:
        return [*self.stats.values(), *self.counts.values(), self.record[1]]


def _turns(net: Restructuring, x: torch.Tensor) -> torch.Tensor:
    layer = net.next[0]
    net.next = [net.b if layer is net.a else net.a]
    return layer(x)


def _turns_in_place(net: Restructuring, x: torch.Tensor) -> torch.Tensor:
    layer = net.next[0]
    net.next[0] = net.b if layer is net.a else net.a
    return layer(x)


def _turns_of_methods(net: Restructuring, x: torch.Tensor) -> torch.Tensor:
    run = net.run or net.a.forward
    net.run = net.b.forward if run == net.a.forward else net.a.forward
    return run(x)


def _turns_of_closures(net: Restructuring, x: torch.Tensor) -> torch.Tensor:
    y = net.run(x) if net.run is not None else net.b(x)
    layer = net.b if y.sum() > 0 else net.a
    net.run = lambda x: layer(x) + net.b(x)
    return y


def _lazily(net: Restructuring, x: torch.Tensor) -> torch.Tensor:
    if net.stages is None:
        net.stages = [Stage(net.a), Stage(net.b)]
    stage = min(net.stages, key=lambda each: each.used)
    stage.used += 1
    return stage.layer(x)


def _lazily_in_dicts(net: Restructuring, x: torch.Tensor) -> torch.Tensor:
    if net.stages is None:
        net.stages = [{"layer": net.a, "used": 0}, {"layer": net.b, "used": 0}]
    stage = min(net.stages, key=lambda each: each["used"])
    stage["used"] += 1
    return stage["layer"](x)


def _in(net: Restructuring, x: torch.Tensor) -> torch.Tensor:
    used = net.used.layers if isinstance(net.used, Used) else net.used
    layer = net.a if len(used) % 2 == 0 else net.b
    if isinstance(used, dict):
        used[layer] = net.a.bias
    elif isinstance(used, set):
        used.add(layer)
    else:
        used.append(layer)
    bias = sum(each for each in used.values()) if isinstance(used, dict) else 0
    return sum(layer(x) for layer in used) + bias


def _counting(net: Restructuring, x: torch.Tensor) -> torch.Tensor:
    layer = min((net.a, net.b), key=lambda each: net.stats[each])
    net.stats[layer] += 1
    net.record[1] += 1
    for parameter in layer.parameters():
        net.counts[parameter] += net.record[1]
    return layer(x) * (1 + net.counts[layer.weight])


WAYS: dict[str, Any] = {
    "turns": _turns,
    "turns in place": _turns_in_place,
    "methods": _turns_of_methods,
    "closures": _turns_of_closures,
    "lazily": _lazily,
    "lazily in dicts": _lazily_in_dicts,
    "list": _in,
    "set": _in,
    "deque": _in,
    "helper": _in,
    "dict": _in,
    "counting": _counting,
}


class Counted(torch.autograd.Function):
    """The identity, whose backward counts in the module."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: nn.Module) -> torch.Tensor:
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.module.of_function += 1
        return gradients[0], None


@hosted
class LateCounting(nn.Module):
    """Hooks of a module and of an activation, and an autograd function, that count on the way back.

    Args:
        frozen: Whether its parameters are not trained.
    """

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE).requires_grad_(not frozen)
        self.of_module = self.of_tensor = self.of_function = 0
        self.norm = torch.zeros(())
        self.counts: Any = {self.layer: 0}
        self.used: list[Any] = []
        self.layer.register_full_backward_hook(self._count)

    def _count(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self.of_module += 1
        self.norm = self.norm + outputs[0].norm()
        self.counts[module] += 1
        self.used.append(module)

    def _of_tensor(self, gradient: torch.Tensor) -> None:
        self.of_tensor += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        y.register_hook(self._of_tensor)
        return Counted.apply(y, self) * (1 + self.of_module) + sum(layer(x) for layer in self.used[:1])

    @remote
    def seen(self) -> list[Any]:
        counts = [self.of_module, self.of_tensor, self.of_function, self.counts[self.layer], len(self.used)]
        return [*counts, all(each is self.layer for each in self.used), float(self.norm)]


TABLE: Any = weakref.WeakKeyDictionary()


@hosted
class Remembering(nn.Module):
    """Stores something under its own identity, or under that of a part of it.

    Args:
        early: What the constructor does.
        late: What each forward does.
    """

    def __init__(self, early: str = "", late: str = "") -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)
        self.late = late
        self.kept: Any = None
        self.table: Any = weakref.WeakKeyDictionary()
        self._do(early)

    def _do(self, way: str) -> None:
        if way == "names":
            self.kept = {id(each): name for name, each in self.named_parameters()}
        elif way == "id":
            self.kept = id(self.layer)
        elif way == "ids":
            self.kept = [(id(self.layer.weight), "weight")]
        elif way == "global table":
            TABLE[self] = 1
        elif way == "table":
            self.table[self.layer] = 1
        elif way == "set":
            self.kept = weakref.WeakSet([self.layer])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._do(self.late)
        return self.layer(x)


@hosted
class Caching(nn.Module):
    """A method whose results are cached."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)

    @functools.lru_cache  # noqa: B019
    def mask(self, size: int) -> torch.Tensor:
        return torch.rand(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.mask(SIZE)
