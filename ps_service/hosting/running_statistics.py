"""Lets concurrent calls use layers with running statistics."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase


def with_statistics(module: nn.Module) -> list[_NormBase]:
    """The layers of a module with running statistics; empty if torch compiles it, which cannot trace locks."""
    modules = list(module.modules())
    if any(_is_compiled(each) for each in modules):
        return []
    return [each for each in modules if isinstance(each, _NormBase) and each.running_mean is not None]


def _is_compiled(module: nn.Module) -> bool:
    """Whether torch compiles it, told by names, because importing torch's compiler takes as long as importing torch."""
    wrapped = any(base.__module__ == "torch._dynamo.eval_frame" for base in type(module).__mro__)
    return wrapped or module._compiled_call_impl is not None


class Updating:
    """The forward of a layer that may be in training mode; one call at a time, so that no update is lost.

    Args:
        layer: A copy of the layer, which shares its statistics.
        lock: Held while it runs.
    """

    def __init__(self, layer: nn.Module, lock: threading.Lock) -> None:
        self._layer = layer
        self._lock = lock

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return type(self._layer).forward(self._layer, *args, **kwargs)


class Evaluating:
    """The forward of a layer in evaluation mode. It notices that the call has put the layer into training mode.

    Torch updates the statistics without a change of their version then.

    Args:
        layer: A copy of the layer.
        reading: Its statistics.
    """

    def __init__(self, layer: nn.Module, reading: Reading) -> None:
        self._layer = layer
        self._reading = reading

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._layer.training:
            self._reading.is_updated = True
        return type(self._layer).forward(self._layer, *args, **kwargs)


class Reading:
    """The statistics of a layer in evaluation mode, copied between two updates.

    Args:
        shared: The buffers of the layer.
        lock: Held while they are copied.

    Attributes:
        own: The buffers of its copy.
        is_updated: Whether the layer has run in training mode.
    """

    def __init__(self, shared: dict[str, torch.Tensor | None], lock: threading.Lock) -> None:
        self._shared = shared
        self._lock = lock
        self._taken: dict[str, torch.Tensor | None] = {}
        self.own = shared.copy()
        self.is_updated = False

    def take(self) -> None:
        """Copies the present statistics."""
        with self._lock:
            self._taken = {name: None if each is None else each.clone() for name, each in self._shared.items()}
        self.own.clear()
        self.own.update(self._taken)

    def give_back(self) -> None:
        """Applies changes that the call itself has made in evaluation mode, such as a reset."""
        with self._lock:
            for name, each in self.own.items():
                if each is not self._taken.get(name) or name not in self._taken:
                    self._shared[name] = each
                elif each is not None and (each._version or self.is_updated):
                    shared = self._shared[name]
                    assert shared is not None
                    shared.copy_(each)
            for name in self._taken.keys() - self.own.keys():
                self._shared.pop(name, None)
        self._taken = {}
        self.is_updated = False
        self.own.clear()
        self.own.update(self._shared)
