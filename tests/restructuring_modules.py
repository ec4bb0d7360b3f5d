"""Hosted modules that change, from call to call, what leads to their layers and parameters."""

from __future__ import annotations

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
