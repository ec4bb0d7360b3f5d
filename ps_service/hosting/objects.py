"""Hosted objects."""

from __future__ import annotations

import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

import torch
from google.protobuf.message import Message
from torch import nn

from ps_service.functions.layers import LayerCheck
from ps_service.hosting.fingerprints import NO_FINGERPRINT, Fingerprint
from ps_service.hosting.internals import Internals
from ps_service.hosting.pinned import Pinned
from ps_service.hosting.views import Views
from ps_service.quotas.accounts import NOBODY
from ps_service.tables.stand_in import RowsOfTable
from ps_wire.close_names import hint
from ps_wire.codec.names import full_name
from ps_wire.codec.trees import tensors_in
from ps_wire.decorators import is_deferred, is_inline, is_remote
from ps_wire.errors import InvalidArgumentError, NotAllowedError, UnknownMethodError, UnknownNameError
from ps_wire.refs import Ref, new_object_id
from ps_wire.runtime.latency import Latency
from ps_wire.tables.names import ROWS

if TYPE_CHECKING:
    from ps_service.hosting.histories import History
    from ps_service.hosting.value_graphs import ValueGraph
    from ps_service.memory.held import Share
    from ps_service.parameters.locks import ParameterLocks
    from ps_service.parameters.state import ParameterState
    from ps_wire.codec.payload import Buffer


SHORT_CALLS: Final = 8
"""Calls without a wait, after which a method of a module's own class may run on the event loop."""

LONG_SECONDS: Final = 0.25
"""A method of which one call took longer than this never does."""


_NOT_OF_PROGRAMS: Final = ("torch.", "builtins", "ps_service.", "ps_wire.", "trainer_client.")
"""How modules of classes begin that are not the program's own."""

_MOST_TOLD: Final = 64


class Method:
    """A method that trainers may call: an unbound function, whose first argument is the object. It `is_inline` if it is
    of a layer of torch, or marked `@remote(inline=True)`, and `is_deferred` if it is marked `@async_execution`. If it
    `may_run_inline`, calls that are expected to be short run on the event loop."""

    __slots__ = ("_calls", "backward_latency", "function", "is_deferred", "is_inline", "latency", "may_run_inline")

    def __init__(self, function: Callable[..., Any], is_inline: bool, is_deferred: bool) -> None:
        self.function = function
        self.is_inline = is_inline
        self.is_deferred = is_deferred
        self.latency = Latency()
        self.backward_latency = Latency()
        self._calls = 0.0
        self.may_run_inline = is_inline and not is_deferred

    def note(self, seconds: float, waited: bool) -> None:
        """Notes a call that ran in a thread or on the event loop, and changed nothing of its module. It has `waited` if
        it made requests of its own, or began to."""
        self._calls = -math.inf if waited or seconds > LONG_SECONDS else self._calls + 1
        self.may_run_inline = self._calls >= SHORT_CALLS


class CreationSpec(NamedTuple):
    """The request that an object was made from, so that the owner can make it again after a restart. The `dependencies`
    are the objects that the request refers to; they are kept as long as this one. It `is_whole` if the request refers
    to no other objects, such as those of another owner."""

    operation: str
    request: Message
    payload: Buffer | None
    dependencies: tuple[HostedObject, ...] = ()
    is_whole: bool = True


class HostedObject:
    """An object on an owner, under a name if it has one. `object_id` is its id before a restart of the owner, if any.

    `parameters` are those of a module by dotted name, with `parameter_refs` and `parameter_states` in the same order.
    `readers` are the names of methods and functions that have run on it without writing to them, and `writers` of those
    that write. It `uses_others` if a call has computed with leaves that are not its parameters. `recorded` counts the
    recorded calls of each method, of which `Binding.inspect` examines some. It `is_layer` if it consists only of
    modules of torch; `layer_check` tells which of its calls need no checks.

    Its `account` is that of who has made it. `references` counts those of all sessions, and `shares` its bytes if it is
    a result that stays. `made_with` is the call of a client that makes such an object, for messages. `creation_spec` is
    None unless the owner keeps checkpoints and a trainer made it. `dependents` are removed with it, such as optimizers
    of its parameters; it does not keep them alive. `when_removed` is called under the lock of the registry.
    """

    internals: Internals
    views: Views

    graph: ValueGraph | None = None
    """The graph of its value, once calls of passes have used that."""

    def __init__(
        self,
        owner: str,
        value: Any,
        parameter_locks: ParameterLocks,
        name: str = "",
        fingerprint: Fingerprint = NO_FINGERPRINT,
        object_id: str = "",
    ) -> None:
        self.ref = Ref(owner, object_id or new_object_id())
        self.value = value
        self.name = name
        self.fingerprint = fingerprint
        self.class_name = full_name(type(value))
        self.account = NOBODY
        self.references = 0
        self.is_tensor = isinstance(value, torch.Tensor)
        if self.is_tensor and value.is_leaf and value.requires_grad:
            parameter_locks.has_other_leaves = True
        self.is_table = isinstance(value, RowsOfTable)
        if self.is_table:
            value.owner = owner
        self.is_module = isinstance(value, nn.Module)
        self.made_with = "ps.module(…)" if self.is_module else "ps.table(…)" if self.is_table else "ps.create(…)"
        self.is_detached = False
        self.is_layer = self.is_module and all(map(_is_torch, value.modules()))
        self.layer_check = LayerCheck(value) if self.is_layer else None
        self.readers = {""}
        self.writers: set[str] = set()
        self.uses_others = False
        self.recorded: Counter[str] = Counter()
        self.creation_spec: CreationSpec | None = None
        # By name, with the attribute of the class that it was made from.
        self._methods: dict[str, tuple[Any, Method]] = {}
        self._history: History | None = None
        self._outputs: dict[int, tuple[torch.Tensor, int]] = {}
        self.shares: list[Share] = []
        self.dependents: WeakSet[HostedObject] = WeakSet()
        self.when_removed: Callable[[], None] | None = None
        self._parameter_locks = parameter_locks
        self.parameters: dict[str, nn.Parameter] = {}
        if self.is_module:
            self.parameters = dict(value.named_parameters())
            if any(getattr(module, "max_norm", None) is not None for module in value.modules()):
                self.writers.add("forward")  # an embedding that rescales the rows it looks up
        elif isinstance(value, nn.Parameter):
            self.parameters = {"": value}
        elif isinstance(value, RowsOfTable):
            self.parameters = {ROWS: value.parameter}
        self.parameter_refs = [self.ref._replace(parameter=name) for name in self.parameters]
        self.parameter_states = [parameter_locks.state(parameter) for parameter in self.parameters.values()]
        if self.is_module:
            self.internals = Internals(value)
            self.views = Views(value, self.parameter_refs, self.parameter_states, self.internals, parameter_locks)
            for state in self.parameter_states:
                state.of_module = True

    @functools.cached_property
    def has_state(self) -> bool:
        """Whether its class can give a state, and take it."""
        return all(callable(getattr(self.value, name, None)) for name in ("state_dict", "load_state_dict"))

    @functools.cached_property
    def size(self) -> tuple[int, int]:
        """Elements of its parameters, and bytes of its parameters and buffers, when this was first asked for. Those of
        what is in a snapshot count for it."""
        if isinstance(self.value, Pinned):
            return self.value.elements, self.value.nbytes
        own = list(self.parameters.values())
        buffers = self.value.buffers() if self.is_module else ()
        return sum(each.numel() for each in own), sum(each.numel() * each.element_size() for each in (*own, *buffers))

    @property
    def history(self) -> History | None:
        """The recorded call that it is a result of; None if gradients cannot propagate through it."""
        return self._history

    @history.setter
    def history(self, history: History) -> None:
        self._history = history
        # By identity: calls that are not part of the pass may move the tensors of the value, and add others.
        found = zip(tensors_in(self.value), history.positions, strict=True)
        self._outputs = {id(tensor): (tensor, position) for tensor, position in found if position is not None}

    def output(self, tensor: torch.Tensor) -> int | None:
        """The position of a tensor of the value among the outputs of the recorded call; None if it is no output."""
        _, position = self._outputs.get(id(tensor), (None, None))
        return position

    def parameter(self, name: str) -> torch.Tensor:
        """The parameter with that dotted name. A tensor that is a leaf of torch's graph is a parameter without a name.
        Raises `UnknownNameError` if there is none, and `InvalidArgumentError` for a tensor that was computed."""
        found = self.parameters.get(name)
        if found is not None:
            return found
        if name or not self.is_tensor:
            raise UnknownNameError(
                f"{self} has no parameter {name!r}; it has {_few(self.parameters)}{hint(name, self.parameters)}"
            )
        value: torch.Tensor = self.value
        if self.is_detached or value.grad_fn is not None:
            raise InvalidArgumentError(
                f"{self} was computed from other tensors, and cannot be optimized; optimize the leaves that it was "
                "computed from"
            )
        return value

    def parameter_state(self, name: str) -> ParameterState:
        """The parameter state of that parameter, which must exist."""
        return self._parameter_locks.state(self.parameter(name))

    def method(self, name: str) -> Method:
        """The method of that name. Raises `UnknownMethodError` if there is none, and `NotAllowedError` if it may not be
        called remotely."""
        function = getattr(type(self.value), name, None)
        known = self._methods.get(name)
        if known is not None and known[0] is function:
            return known[1]
        if not callable(function):
            raise UnknownMethodError(
                f"{self} has no attribute {name!r} that can be called; trainers may call "
                f"{_few(self.methods())}{hint(name, self.methods())}"
            )
        if name in MODES and self.is_module and not is_remote(function):
            self.readers.add(name)
            return Method(partial(_without_result, function), False, False)
        if not (is_remote(function) or name in self._unmarked()):
            raise NotAllowedError(
                f"method {name!r} of {self} may not be called remotely; mark it with @remote in its class, or call "
                f"{_few(self.methods())}"
            )
        inline = self.is_layer or is_inline(function)
        method = Method(_taking_self(type(self.value), name, function), inline, is_deferred(function))
        self._methods[name] = (function, method)
        return method

    def methods(self) -> list[str]:
        """Names of the methods that trainers may call."""
        cls = type(self.value)
        marked = [name for name in dir(cls) if not name.startswith("__") and is_remote(getattr(cls, name, None))]
        return [*self._unmarked(), *marked]

    def not_marked(self) -> list[str]:
        """Names of methods of the program's own classes that trainers may not call, because they are not marked."""
        cls = type(self.value)
        own = (each for each in cls.__mro__ if not each.__module__.startswith(_NOT_OF_PROGRAMS))
        names = dict.fromkeys(name for each in own for name, value in vars(each).items() if _is_method(value))
        known = {*self.methods(), *(dir(nn.Module) if self.is_module else ())}
        return [name for name in names if not name.startswith("_") and name not in known][:_MOST_TOLD]

    def _unmarked(self) -> tuple[str, ...]:
        """Names of the methods that trainers may call although they are not marked."""
        if self.is_module:
            return ("forward",)
        value = self.value
        if isinstance(value, torch.optim.Optimizer) and type(value).__module__.startswith("torch.optim."):
            return ("step", "zero_grad")
        return ()

    def __str__(self) -> str:
        return f"{self.class_name} {self.name!r}" if self.name else f"an anonymous {self.class_name}"


def _taking_self(cls: type, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which takes the object as its first argument also if it is a static or class method."""
    if not isinstance(inspect.getattr_static(cls, name), (staticmethod, classmethod)):
        return function

    @functools.wraps(function)
    def without_self(_: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return without_self


def _is_method(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, (staticmethod, classmethod))


def _without_result(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    function(*args, **kwargs)


MODES: Final = ("train", "eval")
"""Methods of every module that need no mark. They set the mode in which functions of the owner find it."""


def _is_torch(module: nn.Module) -> bool:
    # A hook may run other code.
    return type(module).__module__.startswith("torch.nn.") and not module._forward_hooks


def _few(names: Any) -> str:
    names = list(names)
    shown = ", ".join(names[:8]) or "none"
    return f"{shown}, …" if len(names) > 8 else shown
