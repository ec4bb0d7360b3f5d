"""Hosted modules that keep what one call has computed for the next one."""

from __future__ import annotations

import types
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from ps_service import RRef, hosted, remote

SIZE = 4


class Pair(NamedTuple):
    """Two states."""

    first: torch.Tensor
    second: torch.Tensor


@dataclass
class Memory:
    """A state in a helper object."""

    state: torch.Tensor


class Slotted:
    """The same without a `__dict__`."""

    __slots__ = ("state",)

    def __init__(self, state: torch.Tensor) -> None:
        self.state = state


class _Closed:
    """A state in the variable of a closure."""

    def __init__(self, state: torch.Tensor) -> None:
        def get() -> torch.Tensor:
            return state

        def put(new: torch.Tensor) -> None:
            nonlocal state
            state = new

        self.get, self.put = get, put


def _attribute(net: Any, new: torch.Tensor) -> None:
    net.kept = new


def _item(net: Any, new: torch.Tensor) -> None:
    net.kept[0] = new


def _key(net: Any, new: torch.Tensor) -> None:
    net.kept["state"] = new


def _state(net: Any, new: torch.Tensor) -> None:
    net.kept.state = new


def _tuple(net: Any, new: torch.Tensor) -> None:
    net.kept = (new, {"twice": [Pair(new * 2, new)]})


def _deep(net: Any, new: torch.Tensor) -> None:
    net.kept["deep"].append(([Memory(new)], new))


def _copied(net: Any, new: torch.Tensor) -> None:
    net.kept.copy_(new)


def _view(net: Any, new: torch.Tensor) -> None:
    net.kept = torch.cat([new, new])[: len(new)]


WAYS: dict[str, tuple[Any, Any, Any]] = {
    "attribute": (lambda zero: zero, _attribute, lambda kept: kept),
    "view": (lambda zero: zero, _view, lambda kept: kept),
    "list": (lambda zero: [zero], _item, lambda kept: kept[0]),
    "deque": (lambda zero: deque([zero]), _item, lambda kept: kept[0]),
    "dict": (lambda zero: {"state": zero}, _key, lambda kept: kept["state"]),
    "dataclass": (Memory, _state, lambda kept: kept.state),
    "slots": (Slotted, _state, lambda kept: kept.state),
    "namespace": (lambda zero: types.SimpleNamespace(state=zero), _state, lambda kept: kept.state),
    "closure": (_Closed, lambda net, new: net.kept.put(new), lambda kept: kept.get()),
    "tuple": (lambda zero: (zero, {"twice": [Pair(zero, zero)]}), _tuple, lambda kept: kept[1]["twice"][0].second),
    "deep": (lambda zero: {"deep": [([Memory(zero)], zero)]}, _deep, lambda kept: kept["deep"][-1][0][0].state),
    "buffer": (lambda zero: zero, _attribute, lambda kept: kept),
    "copied": (lambda zero: zero, _copied, lambda kept: kept),
    "buffer copied": (lambda zero: zero, _copied, lambda kept: kept),
}
"""For each place to keep a state: how it begins, how a new one is put there, and how it is looked up."""


@hosted
class Recurrent(nn.Module):
    """A cell that goes on from what its last call has left.

    Args:
        way: Where that is kept.
        use: How it is taken up: "detach", "detach_", "data", "no_grad", "clone", or "bare", with its history.
    """

    def __init__(self, way: str = "attribute", use: str = "detach") -> None:
        super().__init__()
        self.cell = nn.GRUCell(SIZE, SIZE)
        self.way, self.use = way, use
        zero = WAYS[way][0](torch.zeros(3, SIZE))
        if way.startswith("buffer"):
            self.register_buffer("kept", zero)
        else:
            self.kept = zero

    def _taken_up(self) -> torch.Tensor:
        state: torch.Tensor = WAYS[self.way][2](self.kept)
        if self.use == "detach":
            return state.detach().clone() if "copied" in self.way else state.detach()
        if self.use == "detach_":
            return state.detach_()
        if self.use == "data":
            return state.data
        if self.use == "no_grad":
            with torch.no_grad():
                return state * 1.0
        return state.detach().clone() if self.use == "clone" else state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        new = self.cell(x, self._taken_up())
        WAYS[self.way][1](self, new)
        return new * 2 if self.use == "bare" else new

    @remote
    def state(self) -> torch.Tensor:
        return WAYS[self.way][2](self.kept)

    @remote
    def has_history(self) -> bool:
        return WAYS[self.way][2](self.kept).requires_grad


_LEFT: dict[str, torch.Tensor] = {}


@hosted
class Leaving(nn.Module):
    """Leaves its state where nothing is replaced: in a global variable, or in its class."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)
        self.way = way
        _LEFT.clear()
        type(self).left = torch.zeros(3, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        new = self.layer(x) + (_LEFT.get("state", torch.zeros(3, SIZE)) if self.way == "global" else self.left)
        if self.way == "global":
            _LEFT["state"] = new
        else:
            type(self).left = new
        return new.tanh()


@hosted
class Summing:
    """No module; adds up what it is given."""

    def __init__(self) -> None:
        self.total = torch.zeros(3, SIZE)

    @remote
    def add(self, x: torch.Tensor, detached: bool) -> torch.Tensor:
        self.total = (self.total.detach() if detached else self.total) + x
        return self.total * 2


@remote
def through(net: RRef, x: torch.Tensor) -> torch.Tensor:
    """What a module makes of its input."""
    return net.local_value()(x)


@remote
def transformed(net: RRef, x: torch.Tensor, way: str) -> torch.Tensor:
    """Looks a module up inside a transform of torch.func, and uses it outside, too."""

    def loss(z: torch.Tensor) -> torch.Tensor:
        return net.local_value()(z).square().sum()

    transforms = {"grad": torch.func.grad(loss), "vmap": torch.func.vmap(loss), "jacfwd": torch.func.jacfwd(loss)}
    inside = transforms[way](x)
    return inside.sum() + net.local_value()(x)
