"""Allow-list: the classes and functions that trainers may name. Nothing outside it is ever looked up."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, TypeVar

from torch import nn, optim
from torch.optim import lr_scheduler

from ps_service.functions.offered import TorchFunctions
from ps_wire.codec.names import module_name, name_of
from ps_wire.codec.records import codec_of
from ps_wire.decorators import is_hosted, is_remote
from ps_wire.errors import NotAllowedError

T = TypeVar("T")

# Containers of processes and devices rather than layers: an owner decides about those itself.
_NOT_HOSTED = (nn.DataParallel, nn.parallel.DistributedDataParallel)


class AllowList:
    """Classes and functions by the names under which trainers may ask for them.

    Args:
        modules: Modules to look through for classes decorated with `@hosted` and functions decorated with `@remote`.
            Layers, optimizers and schedulers of torch are always on the list.
        functions: The functions of torch that are.

    Attributes:
        functions: The functions of torch, and what guards its layers.
    """

    def __init__(self, modules: Iterable[ModuleType] = (), functions: TorchFunctions | None = None) -> None:
        self.functions = functions or TorchFunctions()
        self._functions: dict[str, Callable[..., Any]] = {}
        self._classes: dict[str, type] = {}
        self._optimizers: dict[str, type[optim.Optimizer]] = {}
        self._schedulers: dict[str, type[lr_scheduler.LRScheduler]] = {}
        self._add_torch()
        for module in modules:
            self.add(module)

    @classmethod
    def importing(cls, names: Iterable[str], functions: TorchFunctions | None = None) -> AllowList:
        """Imports modules named by whoever starts the owner, and lists what they offer.

        Raises:
            ImportError: A module cannot be imported.
            ValueError: A module offers nothing.
        """
        return cls((importlib.import_module(name) for name in names), functions)

    def add(self, module: ModuleType) -> None:
        """Lists the hosted classes and remote functions in a module's namespace, also those it imported.

        Raises:
            ValueError: There are none.
        """
        found = [value for value in vars(module).values() if _is_offered(value)]
        if not found:
            raise ValueError(f"module {module.__name__} has nothing that is decorated with @hosted or @remote")
        for value in found:
            self.allow(value, f"{module_name(module.__name__)}.{value.__qualname__}")

    def allow(self, value: type | Callable[..., Any], *names: str) -> None:
        """Lists a hosted class with what can be called of it, or a remote function.

        Args:
            value: The class or function.
            names: By which it can be asked for besides its own.

        Raises:
            ValueError: It is not decorated.
        """
        if not _is_offered(value):
            raise ValueError(f"{value!r} is decorated with neither @hosted nor @remote")
        for name in {name_of(value), *names}:
            if inspect.isclass(value):
                if is_hosted(value):
                    self._enter(name, value)
                else:
                    self._functions[name] = value
                self._enter_methods(name, value)
            else:
                self._functions[name] = value

    def function(self, name: str) -> Callable[..., Any]:
        """The function of that name, or the method of a hosted class, or its constructor.

        Raises:
            NotAllowedError: It is not on the list.
        """
        made = self._classes.get(name)
        if made is not None:
            return self.functions.constructor(made, name)
        found = self._functions.get(name) or self.functions.get(name)
        if found is None:
            raise NotAllowedError(
                f"function {name!r} is not on this owner's allow-list; it must be decorated with @remote in a "
                "module given to the owner with --import, or be one of torch's that the owner offers "
                f"{self.functions.explanation}"
            )
        return found

    def named(self, name: str) -> Callable[..., Any]:
        """The function or class that a name among the values of a request stands for.

        Raises:
            NotAllowedError: It is not on the list.
        """
        for table in (self._functions, self._classes, self._optimizers, self._schedulers):
            found = table.get(name)
            if found is not None:
                return found
        return self.function(name)

    def hosted(self, name: str) -> type:
        """The class to host.

        Raises:
            NotAllowedError: It is not on the list.
        """
        return _find(
            self._classes, name, "class", "be decorated with @hosted in a module given to the owner with --import"
        )

    def is_hosted(self, name: str) -> bool:
        """Whether it is the name of a class to host."""
        return name in self._classes

    def optimizer(self, name: str) -> type[optim.Optimizer]:
        """The optimizer class of that name.

        Raises:
            NotAllowedError: It is not on the list.
        """
        return _find(
            self._optimizers, name, "optimizer", "be one of torch.optim, or be decorated with @hosted as classes are"
        )

    def scheduler(self, name: str) -> type[lr_scheduler.LRScheduler]:
        """The learning-rate scheduler class of that name.

        Raises:
            NotAllowedError: It is not on the list.
        """
        return _find(
            self._schedulers, name, "scheduler", "be one of torch.optim.lr_scheduler, or be decorated with @hosted"
        )

    def _enter(self, name: str, cls: type) -> None:
        if issubclass(cls, optim.Optimizer):
            self._optimizers[name] = cls
        elif issubclass(cls, lr_scheduler.LRScheduler):
            self._schedulers[name] = cls
        else:
            self._classes[name] = cls

    def _enter_methods(self, name: str, cls: type) -> None:
        for attribute in dir(cls):
            method = getattr(cls, attribute, None)
            # What torch's own modules do in `forward` is theirs to offer; others mark their methods.
            if callable(method) and (is_remote(method) or (attribute == "forward" and issubclass(cls, nn.Module))):
                self._functions[f"{name}.{attribute}"] = method

    def _add_torch(self) -> None:
        for module, base in ((nn, nn.Module), (optim, optim.Optimizer), (lr_scheduler, lr_scheduler.LRScheduler)):
            for value in vars(module).values():
                if not inspect.isclass(value) or not issubclass(value, base) or value is base:
                    continue
                if not issubclass(value, _NOT_HOSTED):
                    self._enter(f"{module.__name__}.{value.__name__}", value)
                    self._enter(f"{value.__module__}.{value.__qualname__}", value)


def _is_offered(value: Any) -> bool:
    if inspect.isclass(value):
        # What arrives by value is made here anyway; but not what others have to be decoded from.
        codec = codec_of(value)
        return is_hosted(value) or (codec is not None and codec.is_record)
    return inspect.isroutine(value) and is_remote(value)


def _find(table: dict[str, T], name: str, what: str, how: str) -> T:
    try:
        return table[name]
    except KeyError:
        raise NotAllowedError(f"{what} {name!r} is not on this owner's allow-list; it must {how}") from None
