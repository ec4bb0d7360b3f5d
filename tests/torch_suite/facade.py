"""Modules under the names of torch's that hold the functions of this project instead."""

from __future__ import annotations

import enum
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, Final
from unittest import mock

import torch
import torch.distributed
from torch.distributed.rpc.internal import RPCExecMode, _build_rpc_profiling_key

from ps_service import by_value, hosted, remote
from tests.torch_suite import inside as counterparts
from tests.torch_suite.catalogue import FILES
from trainer_client import autograd, nn, optim, rpc
from trainer_client.rpc import current

_INTERNAL: Final = "torch.testing._internal"

_IMPORTED: Final = {
    file: f"{_INTERNAL}.distributed.{file.removesuffix('.py').replace('/', '.')}"
    for file in FILES
    if "/jit/" not in file
}
"""The modules of the suite by their files, without those of TorchScript."""

_BEFORE: Final = (f"{_INTERNAL}.common_distributed", "torch.distributed.fsdp")
"""Modules of torch that import torch's own rpc. They are imported before it is replaced."""

_INSIDE: Final = ("api", "backend_registry", "constants", "internal")
"""Modules of torch's rpc that are no part of its public names."""


class BackendType(enum.Enum):
    """The backends of torch. Ours is used in the place of each."""

    TENSORPIPE = "tensorpipe"
    FAULTY_TENSORPIPE = "faulty_tensorpipe"


class Options(rpc.TensorPipeRpcBackendOptions):
    """Our options, without those of torch's that choose among the transports of its agent."""

    def __init__(self, *args: Any, _transports: Any = None, _channels: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class NotOurs:
    """Stands for something inside torch's agent. A test that calls it does not apply.

    Args:
        name: Its full name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> NotOurs:
        if name.startswith("__"):
            raise AttributeError(name)
        return NotOurs(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self._name} is inside torch's agent")

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{self._name} is inside torch's agent")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


def load() -> dict[str, ModuleType]:
    """Imports the suite with our modules in the place of torch's, and marks all that it defines.

    Returns:
        The modules by their files.
    """
    # The processes of the tests are forked, and OpenMP's threads do not survive that.
    torch.set_num_threads(1)
    for name in _BEFORE:
        importlib.import_module(name)
    # What would be compiled by TorchScript stays Python, so that its modules can be imported.
    with _replaced(_replacements()), mock.patch.multiple(torch.jit, script=_same, interface=_same):
        helpers = importlib.import_module(f"{_INTERNAL}.dist_utils")
        modules = {file: importlib.import_module(name) for file, name in _IMPORTED.items()}
    for module in (helpers, *modules.values()):
        for made in _defined(module):
            _mark(made)
    server: Any = modules["rpc/examples/parameter_server_test.py"]  # sends its model, which is a layer of torch
    by_value(make=lambda: torch.nn.Linear(server.in_features, server.out_features))(torch.nn.Linear)
    return modules


def _options(backend: Any, **kwargs: Any) -> Options:
    return Options(**kwargs)


def _init_rpc(name: str, *args: Any, **kwargs: Any) -> None:
    """Our `init_rpc`, with which others may call what the modules of the suite define."""
    names = (f"{_INTERNAL}.dist_utils", *_IMPORTED.values())
    rpc.init_rpc(name, *args, allow=[sys.modules[each] for each in names], **kwargs)


def _replacements() -> dict[str, ModuleType]:
    """Our modules, by the name of torch's that each replaces."""
    public = {name: getattr(rpc, name) for name in rpc.__all__}
    api = _module(
        "torch.distributed.rpc.api",
        public
        | {"_barrier": rpc.barrier, "_all_gather": rpc.all_gather, "_wait_all_workers": rpc.barrier}
        | {
            "_is_current_rpc_agent_set": current.has_agent,
            "_get_current_rpc_agent": counterparts.get_current_rpc_agent,
        },
    )
    seconds = {"DEFAULT_RPC_TIMEOUT_SEC": 60.0, "DEFAULT_SHUTDOWN_TIMEOUT": 0}
    constants = _module("torch.distributed.rpc.constants", seconds)
    made_by = {"BackendType": BackendType, "construct_rpc_backend_options": _options}
    backend_registry = _module("torch.distributed.rpc.backend_registry", made_by)
    names = {"RPCExecMode": RPCExecMode, "_build_rpc_profiling_key": _build_rpc_profiling_key}
    internal = _module("torch.distributed.rpc.internal", names)
    inside = dict(zip(_INSIDE, (api, backend_registry, constants, internal), strict=True))
    named = {"init_rpc": _init_rpc, "BackendType": BackendType, "_set_rpc_timeout": rpc.set_rpc_timeout}
    named |= {"TensorPipeRpcBackendOptions": Options, "_get_current_rpc_agent": counterparts.get_current_rpc_agent}
    named |= {"_rref_context_get_debug_info": counterparts.rref_context_get_debug_info}
    made = [
        *inside.values(),
        _module("torch.distributed.rpc", public | inside | named),
        _module("torch.distributed.autograd", {name: getattr(autograd, name) for name in autograd.__all__}),
        _module("torch.distributed.nn.api.remote_module", {"RemoteModule": nn.RemoteModule}),
        _module("torch.distributed.nn", {"RemoteModule": nn.RemoteModule}),
        _module("torch.distributed.optim", {"DistributedOptimizer": optim.DistributedOptimizer}),
    ]
    return {each.__name__: each for each in made}


def _module(name: str, holds: dict[str, Any]) -> ModuleType:
    """A module in which what a test imports from inside torch's agent is found, and fails when it is called."""

    def missing(asked: str) -> Any:
        if asked.startswith("__") or not (asked[0] == "_" or asked[0].isupper() or asked in _INSIDE):
            raise AttributeError(f"{name} has no {asked!r}")
        return NotOurs(f"{name}.{asked}")

    made = ModuleType(name)
    made.__dict__.update(holds, __getattr__=missing)
    return made


@contextmanager
def _replaced(replacements: dict[str, ModuleType]) -> Iterator[None]:
    """A block in which imports find our modules in the place of torch's."""
    before: list[tuple[ModuleType, str, Any]] = []
    for name in replacements:
        importlib.import_module(name)
    modules = {name: sys.modules[name] for name in replacements}
    holders = {name: sys.modules[name.rpartition(".")[0]] for name in replacements}
    for name, module in replacements.items():
        last = name.rpartition(".")[2]
        before.append((holders[name], last, getattr(holders[name], last)))
        sys.modules[name] = module
        setattr(holders[name], last, module)
    try:
        yield
    finally:
        for holder, last, value in reversed(before):
            setattr(holder, last, value)
        sys.modules.update(modules)


def _same(made: Any) -> Any:
    return made


def _with(cls: type, attributes: dict[str, Any]) -> Any:
    """An object of a class with these attributes, as a program would write it for a class of its own."""
    made = cls.__new__(cls)
    vars(made).update(attributes)
    return made


def _defined(module: ModuleType) -> list[Any]:
    return [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]


def _mark(made: Any) -> None:
    """Lets other processes name a function or class, and call its methods."""
    if inspect.isfunction(made):
        remote(made)
    elif inspect.isclass(made) and issubclass(made, (tuple, BaseException, enum.Enum)):
        by_value(made)
    elif inspect.isclass(made):
        hosted(made)
        if not (issubclass(made, torch.nn.Module) or "__getstate__" in vars(made)):
            by_value(encode=vars, decode=partial(_with, made))(made)
        for method in vars(made).values():
            function: Callable[..., Any] | None = getattr(method, "__func__", method)
            if inspect.isfunction(function):
                remote(function)
