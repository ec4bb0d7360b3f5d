"""Remote modules, with the names of `torch.distributed.nn`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
from torch import nn

from ps_wire.codec.records import by_value
from ps_wire.errors import InvalidArgumentError
from trainer_client.handles import calls
from trainer_client.handles.handles import RemoteModule as Handle
from trainer_client.rpc import invoke
from trainer_client.rpc.current import agent
from trainer_client.rpc.rref import RRef, wrapped

if TYPE_CHECKING:
    from trainer_client.handles.references import RRef as Reference
    from trainer_client.pending import Pending
    from trainer_client.rpc.futures import Future

_NOT_HERE = (
    *("add_module", "apply", "bfloat16", "buffers", "children", "cpu", "cuda", "double", "extra_repr", "float", "half"),
    *("load_state_dict", "modules", "named_buffers", "named_children", "named_modules", "named_parameters"),
    *("parameters", "register_backward_hook", "register_buffer", "register_forward_hook", "register_forward_pre_hook"),
    *("register_parameter", "requires_grad_", "share_memory", "state_dict", "to", "type", "zero_grad"),
)
"""Methods of `nn.Module` that do not work on a remote module."""


class RemoteModule:
    """A module on another member of the group, which is called like a local one.

    It can be an argument or a result of calls, so that every member can use it.

    Args:
        remote_device: Name or rank of the member, and optionally its device: `ps`, `ps/cpu`, `0/cuda:1`. The
            device must be the one that the member hosts on.
        module_cls: A class of `torch.nn`, or one that is marked `@hosted` on that member.
        args: Arguments of the constructor.
        kwargs: Keyword arguments of the constructor.

    Raises:
        ValueError: The class is no subclass of `nn.Module`, or `remote_device` is malformed.
        RemoteError: The constructor raised an exception.
    """

    def __init__(
        self,
        remote_device: str,
        module_cls: type[nn.Module],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not (isinstance(module_cls, type) and issubclass(module_cls, nn.Module)):
            raise ValueError(f"module_cls must be a subclass of torch.nn.Module, not {module_cls!r}")
        self._rref = invoke.remote(_member(remote_device), module_cls, args, kwargs)
        self._rref.handle()
        self.training = True

    @classmethod
    def init_from_module_rref(cls, remote_device: str, module_rref: RRef) -> Self:
        """A remote module for an existing module.

        Args:
            remote_device: Its member and device, as in the constructor.
            module_rref: A reference to the module.

        Raises:
            InvalidArgumentError: The module is on another member, or `module_rref` is no `RRef`.
        """
        if not isinstance(module_rref, RRef):
            raise InvalidArgumentError(f"module_rref must be an RRef, not a {type(module_rref).__name__}")
        if agent().worker(_member(remote_device)).name != module_rref.owner_name():
            raise InvalidArgumentError(f"the module is on {module_rref.owner_name()!r}, not on {remote_device!r}")
        return cls._of(module_rref, True)

    @classmethod
    def _of(cls, rref: RRef, training: bool) -> Self:
        made = cls.__new__(cls)
        made._rref, made.training = rref, training
        return made

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module and returns its result; inside a context the call is recorded."""
        return wrapped(self._call(args, kwargs).wait())

    __call__ = forward

    def forward_async(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Like `forward`, but returns a future at once."""
        return agent().future(self._call(args, kwargs))

    def remote_parameters(self, recurse: bool = True) -> list[RRef]:
        """References to its parameters, for a `DistributedOptimizer`.

        Args:
            recurse: Whether to include the parameters of submodules.
        """
        named = self._module().named_parameters()
        return [RRef.of_handle(handle) for name, handle in named if recurse or "." not in name]

    def get_module_rref(self) -> RRef:
        """A reference to the module."""
        return self._rref

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of calls through this object; other users of the module are not affected."""
        self.training = mode
        return self

    def eval(self) -> Self:
        """Sets evaluation mode for calls through this object."""
        return self.train(False)

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_HERE:
            return _refusal(name)
        raise AttributeError(f"a RemoteModule has no {name!r}")

    def __reduce__(self) -> NoReturn:
        raise RuntimeError(
            "Cannot pickle RemoteModule in python pickler. RemoteModule can only be pickled when using RPC: pass it as "
            "an argument of a call"
        )

    def __repr__(self) -> str:
        return f"<RemoteModule {self._rref!r}>"

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Pending[Any]:
        handle = self._rref.handle()
        seconds = agent().timeout
        return calls.call(handle.session, handle, "", args, kwargs, training=self.training, timeout=seconds)

    def _module(self) -> Handle:
        handle: Reference = self._rref.handle()
        if not isinstance(handle, Handle):
            handle = agent().client.attach(str(handle)).wait()
        if not isinstance(handle, Handle):
            raise InvalidArgumentError(f"{self._rref!r} does not refer to a module")
        return handle


by_value(encode=lambda module: (module._rref, module.training), decode=lambda state: RemoteModule._of(*state))(
    RemoteModule
)


def _refusal(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError(
            f"{name}() does not work on a remote module; it has forward, forward_async, remote_parameters, "
            "get_module_rref, train and eval"
        )

    return refuse


def _member(remote_device: str) -> str | int:
    name, _, device = remote_device.partition("/")
    if not name:
        raise ValueError(f"{remote_device!r} names no member; say 'ps' or 'ps/cpu'")
    if device:
        try:
            torch.device(device)
        except RuntimeError:
            raise ValueError(f"{remote_device!r} names no device; say 'ps' or 'ps/cpu'") from None
    return int(name) if name.isdecimal() else name
