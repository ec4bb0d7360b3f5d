"""Allow-list: the classes that trainers may name. Nothing outside it is ever looked up."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import TypeVar

from torch import nn, optim
from torch.optim import lr_scheduler

from ps_wire.errors import NotAllowedError
from ps_wire.marks import is_hosted

T = TypeVar("T")

# Containers of processes and devices rather than layers: an owner decides about those itself.
_NOT_HOSTED = (nn.DataParallel, nn.parallel.DistributedDataParallel)


class AllowList:
    """Classes by the names under which trainers may ask for them.

    Args:
        modules: Modules to look through for classes that wear `@hosted`. Layers, optimizers and schedulers of torch
            are always on the list.
    """

    def __init__(self, modules: Iterable[ModuleType] = ()) -> None:
        self._classes: dict[str, type] = {}
        self._optimizers: dict[str, type[optim.Optimizer]] = {}
        self._schedulers: dict[str, type[lr_scheduler.LRScheduler]] = {}
        self._add_torch()
        for module in modules:
            self.add(module)

    @classmethod
    def importing(cls, names: Iterable[str]) -> AllowList:
        """Imports modules named by whoever starts the owner, and lists their hosted classes.

        Raises:
            ImportError: A module cannot be imported.
            ValueError: A module has no hosted class.
        """
        return cls(importlib.import_module(name) for name in names)

    def add(self, module: ModuleType) -> None:
        """Lists the hosted classes that can be found in a module's namespace, also those it imported.

        Raises:
            ValueError: There are none.
        """
        found = [value for value in vars(module).values() if inspect.isclass(value) and is_hosted(value)]
        if not found:
            raise ValueError(f"module {module.__name__} has no class that wears @hosted")
        for value in found:
            for name in (f"{module.__name__}.{value.__qualname__}", f"{value.__module__}.{value.__qualname__}"):
                self._enter(name, value)

    def hosted(self, name: str) -> type:
        """The class to host.

        Raises:
            NotAllowedError: It is not on the list.
        """
        return _find(self._classes, name, "class", "wear @hosted in a module given to the owner with --import")

    def optimizer(self, name: str) -> type[optim.Optimizer]:
        """The optimizer class of that name.

        Raises:
            NotAllowedError: It is not on the list.
        """
        return _find(self._optimizers, name, "optimizer", "be one of torch.optim, or wear @hosted as classes do")

    def scheduler(self, name: str) -> type[lr_scheduler.LRScheduler]:
        """The learning-rate scheduler class of that name.

        Raises:
            NotAllowedError: It is not on the list.
        """
        return _find(self._schedulers, name, "scheduler", "be one of torch.optim.lr_scheduler, or wear @hosted")

    def _enter(self, name: str, cls: type) -> None:
        if issubclass(cls, optim.Optimizer):
            self._optimizers[name] = cls
        elif issubclass(cls, lr_scheduler.LRScheduler):
            self._schedulers[name] = cls
        else:
            self._classes[name] = cls

    def _add_torch(self) -> None:
        for module, base in ((nn, nn.Module), (optim, optim.Optimizer), (lr_scheduler, lr_scheduler.LRScheduler)):
            for value in vars(module).values():
                if not inspect.isclass(value) or not issubclass(value, base) or value is base:
                    continue
                if not issubclass(value, _NOT_HOSTED):
                    self._enter(f"{module.__name__}.{value.__name__}", value)
                    self._enter(f"{value.__module__}.{value.__qualname__}", value)


def _find(table: dict[str, T], name: str, what: str, how: str) -> T:
    try:
        return table[name]
    except KeyError:
        raise NotAllowedError(f"{what} {name!r} is not on this owner's allow-list; it must {how}") from None
