"""References to values of members of a group."""

from __future__ import annotations

from collections.abc import Callable
from types import GenericAlias
from typing import TYPE_CHECKING, Any

import torch

from ps_service.hosting.references import RRef as HostedRRef
from ps_wire.errors import PsError
from trainer_client.handles import calls
from trainer_client.handles.references import RRef as Handle
from trainer_client.rpc.contexts import backward
from trainer_client.rpc.current import agent
from trainer_client.rpc.futures import Future
from trainer_client.rpc.options import UNSET

if TYPE_CHECKING:
    from trainer_client.pending import Pending
    from trainer_client.rpc.workers import WorkerInfo


class RRef:
    """A reference to a value in one process, its owner, that all members can use.

    `RRef(value)` makes this process the owner. Other members get references from `rpc.remote`, as arguments, or as
    results. The value lives as long as there are references to it.

    Args:
        value: Any object. Other members can call its methods that are marked `@remote`.
    """

    def __init__(self, value: Any) -> None:
        self._hosted: HostedRRef | None = HostedRRef(value)
        self._handle: Handle | None = None
        self._pending: Pending[Handle] | None = None
        self._owner = ""

    def __class_getitem__(cls, of: Any) -> GenericAlias:
        """An annotation may name the type of the value, as `RRef[torch.Tensor]`."""
        return GenericAlias(cls, of)

    @classmethod
    def of_hosted(cls, rref: HostedRRef) -> RRef:
        """A reference to an object that this process hosts."""
        made = cls.__new__(cls)
        made._hosted, made._handle, made._pending, made._owner = rref, None, None, ""
        return made

    @classmethod
    def of_handle(cls, handle: Handle) -> RRef:
        """A reference for a handle of the client."""
        made = cls.__new__(cls)
        made._hosted, made._handle, made._pending, made._owner = None, handle, None, handle.owner
        return made

    @classmethod
    def of_pending(cls, pending: Pending[Handle], owner: str) -> RRef:
        """A reference for a handle that is not there yet."""
        made = cls.__new__(cls)
        made._hosted, made._handle, made._pending, made._owner = None, None, pending, owner
        return made

    @property
    def hosted(self) -> HostedRRef | None:
        """The reference of the owner in this process; None if there is only a handle of the client."""
        return self._hosted

    def handle(self) -> Handle:
        """The client's handle. For a value of this process, it is made at the first call.

        Raises:
            PsError: The call that was to make the value failed.
        """
        if self._handle is None:
            if self._pending is not None:
                self._handle = self._pending.wait()
            else:
                assert self._hosted is not None
                self._handle = agent().publish(self._hosted)
        return self._handle

    __ps_handle__ = handle

    def owner(self) -> WorkerInfo:
        """The member that has the value."""
        return agent().worker(self.owner_name())

    def owner_name(self) -> str:
        """Name of the member that has the value."""
        return self._owner or agent().name

    def is_owner(self) -> bool:
        """Whether this process has the value."""
        return self.owner_name() == agent().name

    def confirmed_by_owner(self) -> bool:
        """Whether the owner has made the value."""
        if self._pending is None:
            return True
        if not self._pending.done():
            return False
        try:
            self._pending.wait()
        except PsError:
            return False
        return True

    def local_value(self) -> Any:
        """The value itself, on its owner.

        Raises:
            RuntimeError: This process is not the owner.
        """
        if self._hosted is not None:
            return self._hosted.local_value()
        if not self.is_owner():
            raise RuntimeError(
                f"local_value() of a value on {self.owner_name()!r} was called on {agent().name!r}; use to_here()"
            )
        handle = self.handle()
        self._hosted = HostedRRef.to(agent().engine.registry.find(handle.ref), handle.ref.parameter)
        return self._hosted.local_value()

    def to_here(self, timeout: float = UNSET) -> Any:
        """The value; a copy, with tensors on the CPU, if another process has it.

        Args:
            timeout: Seconds this may take; 0 is no limit.

        Raises:
            DeadlineExceededError: The value did not arrive in time.
            PsError: The call that was to make the value failed, or the value cannot be sent.
        """
        if self._hosted is not None:
            return self._hosted.local_value()
        return wrapped(self.handle().to_here(agent().seconds(timeout)).wait())

    def rpc_sync(self, timeout: float = UNSET) -> Proxy:
        """A proxy whose methods call those of the value and wait: `rref.rpc_sync().method(...)`."""
        return Proxy(self, lambda pending: wrapped(pending.wait()), timeout, keep=False)

    def rpc_async(self, timeout: float = UNSET) -> Proxy:
        """A proxy whose methods call those of the value and return futures."""
        return Proxy(self, lambda pending: agent().future(pending), timeout, keep=False)

    def remote(self, timeout: float = UNSET) -> Proxy:
        """A proxy whose methods call those of the value and return references; results stay on the owner."""
        owner = self.owner_name()
        return Proxy(self, lambda pending: RRef.of_pending(agent().outstanding(pending), owner), timeout, keep=True)

    def backward(self, context_id: int = -1, retain_graph: bool = False) -> None:
        """Propagates from the value, which has to be a tensor with one element.

        Args:
            context_id: The id of the context; -1 for torch's own backward, on the owner only.
            retain_graph: Whether to keep the graph for another backward.

        Raises:
            RuntimeError: The value is no tensor, or another process has it and `context_id` is -1.
        """
        if context_id == -1 and not self.is_owner():
            raise RuntimeError("backward() of a value on another member needs a context id")
        value = self.to_here()
        if not isinstance(value, torch.Tensor):
            raise RuntimeError(f"backward() needs a tensor, and this is a {type(value).__name__}")
        if context_id == -1:
            value.backward(retain_graph=retain_graph)
        else:
            backward(context_id, [value], retain_graph)

    def _get_future(self) -> Future[RRef]:
        """Done when the owner has made the value."""
        if self._pending is None:
            made: Future[RRef] = Future()
            made.set_result(self)
            return made
        return Future(self._pending, lambda _: self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RRef) and (self is other or self.handle() == other.handle())

    def __hash__(self) -> int:
        return hash(self.handle())

    def __reduce__(self) -> Any:
        raise RuntimeError(
            "Can not pickle rref in python pickler: pass it as an argument of a call, or return it from one instead"
        )

    def __repr__(self) -> str:
        what = repr(self._hosted) if self._hosted is not None else str(self._handle or "a value that is being made")
        return f"<RRef of {self.owner_name()}: {what}>"


class Proxy:
    """The methods of a referenced value."""

    def __init__(self, rref: RRef, give: Callable[[Pending[Any]], Any], timeout: float, keep: bool) -> None:
        self._rref = rref
        self._give = give
        self._timeout = timeout
        self._keep = keep

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)

        def method(*args: Any, **kwargs: Any) -> Any:
            handle = self._rref.handle()
            seconds = agent().seconds(self._timeout)
            return self._give(calls.call(handle.session, handle, name, args, kwargs, keep=self._keep, timeout=seconds))

        return method


def wrapped(value: Any) -> Any:
    """Replaces the client's handles in a result by references."""
    if isinstance(value, Handle):
        return RRef.of_handle(value)
    if type(value) in (list, tuple):
        return type(value)(map(wrapped, value))
    if type(value) is dict:
        return {wrapped(key): wrapped(item) for key, item in value.items()}
    return value
