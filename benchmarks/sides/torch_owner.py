"""The functions that trainers call on the owners of the side of torch.distributed.rpc."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.rpc import RRef

_lock = threading.RLock()
_shared: dict[str, nn.Module] = {}


def nothing() -> None:
    """The empty call."""


def echo(payload: Tensor) -> Tensor:
    """Sends a tensor back."""
    return payload


def increment(number: int) -> int:
    """A small call whose result can be checked."""
    return number + 1


def seed(number: int) -> None:
    """Seeds this process, so that its dropout can be repeated elsewhere."""
    torch.manual_seed(number)


def make(seed: int, cls: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    """A new module."""
    # Calls run concurrently in several threads, which share torch's generator.
    with _lock, torch.random.fork_rng():
        torch.manual_seed(seed)
        return cls(*args, **kwargs)


def make_shared(name: str, seed: int, cls: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    """The module of that name; made at the first call."""
    with _lock:
        if name not in _shared:
            _shared[name] = make(seed, cls, *args, **kwargs)
        return _shared[name]


def call_method(method: Callable[..., Any], rref: RRef, *args: Any) -> Any:
    """Calls a method of a referenced object."""
    return method(rref.local_value(), *args)


def parameter_rrefs(rref: RRef) -> list[RRef]:
    """References to a module's parameters, for the distributed optimizer."""
    return [RRef(parameter) for parameter in rref.local_value().parameters()]


def state_dict(rref: RRef) -> dict[str, Tensor]:
    """A copy of a module's state."""
    return {name: value.detach().clone() for name, value in rref.local_value().state_dict().items()}


class Trained:
    """A module with its optimizer, of which trainers have copies.

    Args:
        number: Seed of its construction.
        lr: Learning rate of SGD.
        made: The class, and its arguments.
    """

    def __init__(self, number: int, lr: float, *made: Any) -> None:
        self._net = make(number, *made)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=lr)

    def pull(self) -> list[Tensor]:
        """Copies of the parameters."""
        return [parameter.detach().clone() for parameter in self._net.parameters()]

    def push_and_pull(self, gradients: list[Tensor]) -> list[Tensor]:
        """Steps with gradients; copies of the parameters after that."""
        with _lock:
            for parameter, gradient in zip(self._net.parameters(), gradients, strict=True):
                parameter.grad = gradient
            self._optimizer.step()
            return self.pull()

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the state of the module."""
        return {name: value.detach().clone() for name, value in self._net.state_dict().items()}
