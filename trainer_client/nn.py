"""Remote modules, with the names of `torch.distributed.nn`, and layers that look up in tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
from torch import nn

from ps_wire.codec.records import by_value
from ps_wire.decorators import remote
from ps_wire.errors import InvalidArgumentError
from trainer_client.handles import calls
from trainer_client.handles.calls import CallOptions
from trainer_client.handles.handles import RemoteModule as Handle
from trainer_client.rpc import invoke
from trainer_client.rpc.current import agent, offer
from trainer_client.rpc.options import check_device
from trainer_client.rpc.rref import RRef, future_of, wrapped
from trainer_client.tables.layers import Embedding, EmbeddingBag

if TYPE_CHECKING:
    from trainer_client.handles.references import RRef as Reference
    from trainer_client.pending import Pending
    from trainer_client.rpc.futures import Future

__all__ = ["Embedding", "EmbeddingBag", "RemoteModule"]

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
        remote_device: Name or rank of the member, and optionally its device: `ps`, `ps/cpu`,
            `rank:0/cuda:1`. The device must be the one that the member hosts on (`init_rpc(device=)`).
        module_cls: A class of `torch.nn`, or one that is marked `@hosted` on that member.
        args: Arguments of the constructor.
        kwargs: Keyword arguments of the constructor.

    Attributes:
        module_rref: A reference to the module.
        training: The mode of calls through this object.
        device: The device that was asked for.
        is_device_map_set: As in torch; there are no device maps here.
        is_scriptable: As in torch; there is no TorchScript here.

    Raises:
        ValueError: The class is no subclass of `nn.Module`, or `remote_device` is malformed or names another device.
        RemoteError: The constructor raised an exception.
    """

    is_device_map_set = False
    is_scriptable = False
    _class_name = ""

    def __init__(
        self,
        remote_device: str,
        module_cls: type[nn.Module],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not (isinstance(module_cls, type) and issubclass(module_cls, nn.Module)):
            raise ValueError(
                "Expect `module_cls(*args, **kwargs)` returns an instance of <class nn.Module>, but module_cls is "
                f"no subclass of it: {module_cls!r}"
            )
        member, self.device = _placed(remote_device)
        self.module_rref = invoke.remote(member, module_cls, args, kwargs)
        self.module_rref.handle()
        self._class_name = module_cls.__qualname__
        self.training = True

    @classmethod
    @remote
    def init_from_module_rref(cls, remote_device: str, module_rref: RRef) -> Self:
        """A remote module for an existing module, on any member. It can be called with `rpc_sync`, too.

        Args:
            remote_device: A member and device, as in the constructor. As in torch, the module stays with the owner of
                the reference.
            module_rref: A reference to the module.

        Raises:
            InvalidArgumentError: `module_rref` is no `RRef`.
            ValueError: `remote_device` is malformed.
        """
        if not isinstance(module_rref, RRef):
            raise InvalidArgumentError(f"module_rref must be an RRef, not a {type(module_rref).__name__}")
        return cls._of(module_rref, True, _placed(remote_device)[1])

    @classmethod
    def _of(cls, rref: RRef, training: bool, device: str) -> Self:
        made = cls.__new__(cls)
        made.module_rref, made.training, made.device = rref, training, device
        return made

    @property
    def on(self) -> str:
        """Name of the member that has the module."""
        return self.module_rref.owner_name()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module and returns its result; inside a context the call is recorded."""
        return wrapped(self._call(args, kwargs, "sync").wait())

    __call__ = forward

    def forward_async(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Like `forward`, but returns a future at once."""
        return future_of(self._call(args, kwargs, "async"))

    def remote_parameters(self, recurse: bool = True) -> list[RRef]:
        """References to its parameters, for a `DistributedOptimizer`.

        Args:
            recurse: Whether to include the parameters of submodules.
        """
        named = self._module().named_parameters()
        return [RRef.of_handle(handle) for name, handle in named if recurse or "." not in name]

    def get_module_rref(self) -> RRef:
        """A reference to the module, the same as `module_rref`."""
        return self.module_rref

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of calls through this object, and of the module itself on its owner.

        Calls that others make through remote modules of their own are not affected. Functions of the owner, and methods
        that are called through a reference, find the module in that mode (`rref.local_value().training`).

        Raises:
            ValueError: `mode` is no truth value.
        """
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        with torch.no_grad():  # this is no part of a pass
            self.module_rref.rpc_sync().train(mode)
        self.training = mode
        return self

    def eval(self) -> Self:
        """The same as `train(False)`."""
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
        return f"<RemoteModule {self.module_rref!r}>"

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], kind: str) -> Pending[Any]:
        handle = self.module_rref.handle()
        what = f"{self._class_name}.forward" if self._class_name else ""
        options = CallOptions(training=self.training, timeout=agent().settings.timeout, kind=kind, what=what)
        return calls.call(handle.session, handle, "", args, kwargs, options)

    def _module(self) -> Handle:
        handle: Reference = self.module_rref.handle()
        if not isinstance(handle, Handle):
            handle = agent().client.attach(str(handle)).wait()
        if not isinstance(handle, Handle):
            raise InvalidArgumentError(f"{self.module_rref!r} does not refer to a module")
        return handle


by_value(
    encode=lambda module: (module.module_rref, module.training, module.device),
    decode=lambda state: RemoteModule._of(*state),
)(RemoteModule)
offer(RemoteModule.init_from_module_rref)


def _refusal(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        instead = "Please use ``remote_parameters`` instead. " if name == "parameters" else ""
        raise ValueError(
            f"Method ``{name}`` not supported for RemoteModule. {instead}It has forward, forward_async, "
            "remote_parameters, get_module_rref, train and eval"
        )

    return refuse


def _placed(remote_device: str) -> tuple[str | int, str]:
    """The member of a `remote_device` such as `ps/cpu` or `rank:0/cuda:1`, and its device, which is checked."""
    if not isinstance(remote_device, str):
        raise ValueError(f"{remote_device!r} names no member; say 'ps' or 'ps/cpu'")
    name, _, device = remote_device.partition("/")
    name = name.removeprefix("rank:")
    if not name:
        raise ValueError(f"{remote_device!r} names no member; say 'ps' or 'ps/cpu'")
    member = int(name) if name.isdecimal() else name
    if device:
        try:
            wanted = torch.device(device)
        except RuntimeError:
            raise ValueError(f"{remote_device!r} names no device; say 'ps' or 'ps/cpu'") from None
        check_device(agent().worker(member).name, agent().session(member).device, wanted)
    return member, device or "cpu"
