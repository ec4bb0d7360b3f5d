"""Lets concurrent calls on views use layers with running statistics."""

from __future__ import annotations

import threading
from typing import Any

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


class StatisticsLock:
    """A reentrant lock. Another thread may release it for its holder, when the holder's call takes too long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = 0
        self._depth = 0

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if self._thread != thread:
            self._lock.acquire()
            self._thread = thread
        self._depth += 1

    def __exit__(self, *raised: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._thread = 0
            self._lock.release()


class Guarded:
    """The forward of a layer whose statistics many calls share.

    In training mode one call at a time updates them, so that no update is lost. In evaluation mode each call computes
    with a copy: torch saves them for the backward, and later updates must not change what it has saved. The layer is
    that of a view, and the lock is held while its statistics are updated or copied.
    """

    def __init__(self, layer: nn.Module, lock: StatisticsLock) -> None:
        self._layer = layer
        self._lock = lock

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer = self._layer
        if layer.training:
            with self._lock:
                return type(layer).forward(layer, *args, **kwargs)
        made: Any = object.__new__(type(layer))
        made.__dict__.update(layer.__dict__)
        with self._lock:
            copies = {name: None if each is None else each.clone() for name, each in layer._buffers.items()}
        made.__dict__["_buffers"] = copies
        return type(layer).forward(made, *args, **kwargs)
