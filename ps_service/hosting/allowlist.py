"""The allow-list of classes and functions that trainers may name. No other name is looked up."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterable
from itertools import chain
from types import ModuleType
from typing import Any, Final, TypeVar

from torch import nn, optim
from torch.optim import lr_scheduler

from ps_service.functions.torch_functions import TorchFunctions
from ps_service.hosting.loaded import LoadedSources
from ps_wire.close_names import hint
from ps_wire.codec.names import full_name, module_name, name_of
from ps_wire.codec.records import codec_of
from ps_wire.decorators import is_hosted, is_remote
from ps_wire.errors import NotAllowedError
from ps_wire.numerics import operators

_log = logging.getLogger(__name__)

T = TypeVar("T")

GIVEN: Final = "in a module given to the owner with --import"
"""Where trainers of an owner find what they may use, for messages."""

_MISSING: Final = "has methods marked @remote, but @hosted is missing on the class"

# They manage processes and devices, which an owner decides about itself.
_NOT_HOSTED = (nn.DataParallel, nn.parallel.DistributedDataParallel)


class AllowList:
    """The classes and functions that trainers may use, by name: the classes marked `@hosted` and the functions marked
    `@remote` of some modules, and always the layers, optimizers and schedulers of torch. `functions` has the functions
    of torch, and the checks of its layers. A name that is not on the list raises a `NotAllowedError`, which says where
    what is marked has to be: `given`."""

    def __init__(
        self, modules: Iterable[ModuleType] = (), functions: TorchFunctions | None = None, given: str = GIVEN
    ) -> None:
        self.functions = functions or TorchFunctions()
        self.loaded = LoadedSources()
        self._given = given
        # Classes that are not marked, and have methods that are, by name.
        self._half_marked: dict[str, type] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._classes: dict[str, type] = {}
        self._admitted: set[str] = set()
        self._optimizers: dict[str, type[optim.Optimizer]] = {}
        self._schedulers: dict[str, type[lr_scheduler.LRScheduler]] = {}
        self._add_torch()
        for module in modules:
            self.add(module)
        self.warn()

    @classmethod
    def importing(cls, names: Iterable[str], functions: TorchFunctions | None = None) -> AllowList:
        """Imports the modules of `--import`, and lists their marked classes and functions. One that cannot be imported
        is an `ImportError`, and one without any a `ValueError`."""
        return cls((_imported(name) for name in names), functions)

    def add(self, module: ModuleType) -> None:
        """Lists the marked classes and functions in a module's namespace, including imported ones. Raises `ValueError`
        if there are none."""
        found = [value for value in vars(module).values() if _is_offered(value)]
        half_marked = [value for value in vars(module).values() if _is_half_marked(value)]
        for value in half_marked:
            self._half_marked[full_name(value)] = value
            self._half_marked[f"{module_name(module.__name__)}.{value.__qualname__}"] = value
        if not found:
            told = "".join(f"; class {each.__qualname__} {_MISSING}" for each in half_marked[:1])
            raise ValueError(f"module {module.__name__} has nothing that is decorated with @hosted or @remote{told}")
        for value in found:
            self.allow(value, f"{module_name(module.__name__)}.{value.__qualname__}")

    def allow(self, value: type | Callable[..., Any], *names: str) -> None:
        """Lists a class and its remote methods, or a function, under its name and further names. Raises `ValueError` if
        it is not marked."""
        if not _is_offered(value):
            raise ValueError(f"{value!r} is decorated with neither @hosted nor @remote")
        self.loaded.add(value)
        for name in {name_of(value), *names}:
            if inspect.isclass(value) and not is_hosted(value):
                self._functions[name] = value
                self._enter_methods(name, value)
            else:
                self._list(value, name)

    def admit(self, value: type | Callable[..., Any], name: str) -> None:
        """Lists a class and its remote methods, or a function, under a name of its own only. It need not be marked: for
        what the program hands over that the owner runs in."""
        self._admitted.add(name)
        self._list(value, name)

    def one_name_of(self, cls: type, name: str) -> str:
        """The same for all names that a listed class has."""
        return name if name in self._admitted else name_of(cls)

    def _list(self, value: type | Callable[..., Any], name: str) -> None:
        if inspect.isclass(value):
            self._enter(name, value)
            self._enter_methods(name, value)
        else:
            self._functions[name] = value

    def warn(self) -> None:
        """Logs which classes have methods marked `@remote` and can be made by nobody, because they are not marked
        `@hosted`. Those that listed classes derive from need no mark, nor do those whose methods are listed alone."""
        listed = (*self._classes.values(), *self._optimizers.values(), *self._schedulers.values())
        for cls in dict.fromkeys(self._half_marked.values()):
            methods = {f"{full_name(cls)}.{name}" for name, value in vars(cls).items() if _is_marked(value)}
            if not any(issubclass(each, cls) for each in listed) and not methods <= self._functions.keys():
                _log.warning("class %s %s: trainers cannot make it", full_name(cls), _MISSING)

    def function(self, name: str) -> Callable[..., Any]:
        """The function of that name, which may also be a method of a hosted class or its constructor."""
        made = self._classes.get(name)
        if made is not None:
            return self.functions.constructor(made, name)
        found = self._functions.get(name) or self.functions.get(name)
        if found is None:
            self._check_marks(name)
            raise NotAllowedError(
                f"function {name!r} is not on this owner's allow-list; it must be decorated with @remote {self._given} "
                "(a class with @hosted), or be one of torch's that the owner offers "
                f"{self.functions.explanation}{self._hint(name, chain(self._functions, self.functions.listed))}"
            )
        return found

    def named(self, name: str) -> Callable[..., Any]:
        """The function or class for a name among the values of a request."""
        for table in (self._functions, self._classes, self._optimizers, self._schedulers):
            found = table.get(name)
            if found is not None:
                return found
        return self.function(name)

    def hosted(self, name: str) -> type:
        """The hosted class of that name."""
        if name not in self._classes:
            self._check_marks(name)
        return self._find(self._classes, name, "class", f"be decorated with @hosted {self._given}")

    def _check_marks(self, name: str) -> None:
        """Raises what is said of a class that is not marked and has methods that are, or of such a method."""
        for each in (name, name.rpartition(".")[0]):
            if each in self._half_marked:
                raise NotAllowedError(
                    f"class {each!r} is not on this owner's allow-list: it {_MISSING}. Write @hosted above it, and "
                    "start the owner again"
                )

    def is_hosted(self, name: str) -> bool:
        """Whether it is the name of a hosted class."""
        return name in self._classes

    def optimizer(self, name: str) -> type[optim.Optimizer]:
        """The optimizer class of that name."""
        return self._find(
            self._optimizers, name, "optimizer", "be one of torch.optim, or be decorated with @hosted as classes are"
        )

    def scheduler(self, name: str) -> type[lr_scheduler.LRScheduler]:
        """The learning-rate scheduler class of that name."""
        return self._find(
            self._schedulers, name, "scheduler", "be one of torch.optim.lr_scheduler, or be decorated with @hosted"
        )

    def _find(self, table: dict[str, T], name: str, what: str, how: str) -> T:
        try:
            return table[name]
        except KeyError:
            full = min(
                (each for each in table if each.startswith("torch.") and each.endswith(f".{name}")), key=len, default=""
            )
            if full and "." not in name:
                how += f". With its full name: write {full}"
            close = "" if full and "." not in name else self._hint(name, table)
            raise NotAllowedError(f"{what} {name!r} is not on this owner's allow-list; it must {how}{close}") from None

    def _hint(self, name: str, listed: Iterable[str]) -> str:
        """Why a name may be missing: its module was changed since, or it is misspelled."""
        return self.loaded.missing(name) or hint(name, listed)

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
            # `forward` of a module is always listed; other methods have to be marked.
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
        # Classes that are sent by value are made here anyway, except those with a decoder.
        codec = codec_of(value)
        return is_hosted(value) or (codec is not None and codec.is_record)
    return inspect.isroutine(value) and is_remote(value)


def _is_half_marked(value: Any) -> bool:
    """Whether it is a class with methods marked `@remote` that is not marked itself."""
    return inspect.isclass(value) and not _is_offered(value) and any(map(_is_marked, vars(value).values()))


def _is_marked(attribute: Any) -> bool:
    """Whether an attribute of a class is a method that is marked `@remote`."""
    return is_remote(getattr(attribute, "__func__", attribute))


def _imported(name: str) -> ModuleType:
    try:
        module = importlib.import_module(name)
        operators.resolve(again=True)  # it may have own ones
        return module
    except ModuleNotFoundError as error:
        message = f"--import {name}: {error}"
        if error.name and f"{name}.".startswith(f"{error.name}."):
            folders = ", ".join(dict.fromkeys(each or os.getcwd() for each in sys.path))
            message += (
                f"; it is in none of these folders: {folders}. Start the owner where the module is, or set PYTHONPATH"
            )
        raise ImportError(message, name=error.name) from error
    except ImportError as error:
        raise ImportError(f"--import {name}: {error}", name=error.name) from error
