"""Modules that refer to their parameters in every way there is."""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ps_service import hosted, remote
from tests.odd_modules import SIZE


@dataclass
class Helper:
    """A plain object around a layer and a parameter."""

    layer: nn.Module
    gain: nn.Parameter
    calls: int = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x) * self.gain


class Slotted:
    """The same without a `__dict__`."""

    __slots__ = ("calls", "gain", "layer")

    def __init__(self, layer: nn.Module, gain: nn.Parameter) -> None:
        self.layer, self.gain, self.calls = layer, gain, 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x) * self.gain


@hosted
class Odd(nn.Module):
    """A layer and a gain, and something that is called with the input and computes with them."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)
        self.gain = nn.Parameter(torch.ones(SIZE))
        self.run = WAYS[way](self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.run(x))

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.gain

    @remote
    def calls(self) -> int:
        return self.run.calls


def _closure(net: Odd) -> Any:
    layer, gain = net.layer, net.gain
    return lambda x: layer(x) * gain


def _defaults(net: Odd) -> Any:
    def run(x: torch.Tensor, gain: nn.Parameter = net.gain, *, layer: nn.Module = net.layer) -> torch.Tensor:
        return layer(x) * gain

    return run


def _recursive(net: Odd) -> Any:
    def run(x: torch.Tensor, depth: int = 3) -> torch.Tensor:
        return x if not depth else run(torch.tanh(net.layer(x) * net.gain), depth - 1)

    return run


def _partial(net: Odd) -> Any:
    scaled = functools.partial(torch.mul, net.gain)
    layer = functools.partial(nn.Module.__call__, net.layer)
    return lambda x: scaled(other=layer(x))


def _wrapped(net: Odd) -> Any:
    @functools.wraps(net.layer.forward)
    def run(x: torch.Tensor) -> torch.Tensor:
        return run.__wrapped__(x) * net.gain  # type: ignore[attr-defined]

    return run


def _sets(net: Odd) -> Any:
    layers, gains, waiting = {net.layer}, frozenset([net.gain]), deque([net.gain, net.layer])
    by_parameter = {net.gain: net.layer, "name": "a name"}

    def run(x: torch.Tensor) -> torch.Tensor:
        y = sum(layer(x) for layer in layers) * sum(gains) + waiting[1](x) * waiting[0]
        return y + sum(layer(x) * gain for gain, layer in by_parameter.items() if isinstance(gain, torch.Tensor))

    return run


def _weak(net: Odd) -> Any:
    layer, gain, method = weakref.ref(net.layer), weakref.ref(net.gain), weakref.WeakMethod(net.scaled)
    return lambda x: layer()(x) * gain() + method()(x)  # type: ignore[misc]


def _methods(net: Odd) -> Any:
    times = net.gain.mul
    return lambda x: times(net.layer.forward(x))


def _nested(net: Odd) -> Any:
    space = types.SimpleNamespace(pair=(net.gain, [Helper(net.layer, net.gain)]), itself=None)
    space.itself = space
    return lambda x: space.itself.pair[1][0](x) * space.pair[0]


WAYS: dict[str, Any] = {
    "closure": _closure,
    "closure over the module": lambda net: lambda x: net.scaled(x),
    "defaults": _defaults,
    "recursive closure": _recursive,
    "partial": _partial,
    "wrapped function": _wrapped,
    "dataclass": lambda net: Helper(net.layer, net.gain),
    "slots": lambda net: Slotted(net.layer, net.gain),
    "sets and dict keys": _sets,
    "weak references": _weak,
    "methods of a parameter": _methods,
    "nested": _nested,
    "compiled function, eager": lambda net: torch.compile(lambda x: net.scaled(x), backend="eager"),
    "compiled method, aot_eager": lambda net: torch.compile(net.scaled, backend="aot_eager"),
}
