"""References to values of members of a group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import GenericAlias
from typing import TYPE_CHECKING, Any

import torch

from ps_service.hosting.references import RRef as HostedRRef
from ps_wire.codec.records import codec_of
from ps_wire.codec.trees import once, parts_of
from ps_wire.errors import RAN_OUT, DeadlineExceededError, PsError, caused
from trainer_client.contexts.current import current_context
from trainer_client.handles import calls
from trainer_client.handles.calls import CallOptions
from trainer_client.handles.references import RRef as Handle
from trainer_client.rpc.contexts import backward
from trainer_client.rpc.current import agent, has_agent
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

    Raises:
        RuntimeError: This process is in no group.
    """

    hosted: HostedRRef | None = None
    """The reference of the owner in this process; None if there is only a handle of the client."""

    _handle: Handle | None = None
    _pending: Pending[Handle] | None = None
    _owner = ""

    def __init__(self, value: Any) -> None:
        agent()  # without a group, no member could ever use it
        self.hosted = HostedRRef(value)

    def __class_getitem__(cls, of: Any) -> GenericAlias:
        """An annotation may name the type of the value, as `RRef[torch.Tensor]`."""
        return GenericAlias(cls, of)

    @classmethod
    def of_hosted(cls, rref: HostedRRef) -> RRef:
        """A reference to an object that this process hosts."""
        made = cls.__new__(cls)
        made.hosted = rref
        return made

    @classmethod
    def of_handle(cls, handle: Handle) -> RRef:
        """A reference for a handle of the client."""
        made = cls.__new__(cls)
        made._handle, made._owner = handle, handle.owner
        return made

    @classmethod
    def of_pending(cls, pending: Pending[Handle], owner: str) -> RRef:
        """A reference for a handle that is not there yet."""
        made = cls.__new__(cls)
        made._pending, made._owner = pending, owner
        return made

    def handle(self, seconds: float | None = None) -> Handle:
        """The client's handle; for a value of this process, it is made at the first call. A call that makes the value
        is waited for, for so many seconds, or as long as it may take; its error is raised."""
        if self._handle is None:
            if self._pending is not None:
                self._handle = _made(self._pending, seconds)
            else:
                assert self.hosted is not None
                self._handle = agent().publish(self.hosted)
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
        if self.hosted is not None:
            return self.hosted.local_value()
        if not self.is_owner():
            raise RuntimeError(
                f"can't call localValue() on user {agent().name!r}. Call it on owner {self.owner_name()!r}, or use "
                "to_here()"
            )
        return self._own_value(self.handle(), UNSET)

    def to_here(self, timeout: float = UNSET) -> Any:
        """The value; a copy, with tensors on the CPU, if another process has it.

        Inside a context, gradients go back through the copy.

        Args:
            timeout: Seconds this may take; 0 is no limit.

        Raises:
            DeadlineExceededError: The value did not arrive in time.
            PsError: The call that was to make the value failed, or the value cannot be sent.
            RuntimeError: This process has left the group, and given the reference back.
        """
        if self.hosted is not None:
            return self.hosted.local_value()
        if not has_agent():
            raise RuntimeError(
                "this process is in no group any more, and has given its references back. Cannot call to_here() on it "
                "after deletion."
            )
        seconds = agent().seconds(timeout)
        handle = self.handle(seconds)
        return self._own_value(handle, timeout) if self.is_owner() else wrapped(handle.to_here(seconds).wait())

    def _own_value(self, handle: Handle, timeout: float) -> Any:
        """The value of a handle to an object of this process."""
        context = current_context()
        if context is not None and torch.is_grad_enabled() and handle.token(context.id) is not None:
            # A call of this pass has computed it, and only a copy has its history here.
            return wrapped(handle.to_here(agent().seconds(timeout)).wait())
        hosted = HostedRRef.to(agent().engine.registry.look_up(handle.ref), handle.ref.parameter)
        if context is None:
            self.hosted = hosted
        return hosted.local_value()

    def rpc_sync(self, timeout: float = UNSET) -> Proxy:
        """A proxy whose methods call those of the value and wait: `rref.rpc_sync().method(...)`."""
        return Proxy(self, lambda pending: wrapped(pending.wait()), timeout, "sync")

    def rpc_async(self, timeout: float = UNSET) -> Proxy:
        """A proxy whose methods call those of the value and return futures."""
        return Proxy(self, future_of, timeout, "async")

    def remote(self, timeout: float = UNSET) -> Proxy:
        """A proxy whose methods call those of the value and return references; results stay on the owner."""
        owner = self.owner_name()
        return Proxy(self, lambda pending: RRef.of_pending(agent().outstanding(pending), owner), timeout, "remote")

    def backward(self, context_id: int = -1, retain_graph: bool = False) -> None:
        """Propagates from the value, which has to be a tensor with one element.

        Args:
            context_id: The id of the context; -1 for torch's own backward, on the owner only.
            retain_graph: Whether to keep the graph for another backward.

        Raises:
            RuntimeError: The value is no tensor, or another process has it and `context_id` is -1.
        """
        if context_id == -1 and not self.is_owner():
            raise RuntimeError(
                "User RRefs require 'dist_autograd_ctx_id' to be specified: another member has the value"
            )
        value = self.to_here()
        if not isinstance(value, torch.Tensor):
            raise RuntimeError(f"RRef should contain a tensor for .backward(), and this is a {type(value).__name__}")
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

    def _get_profiling_future(self) -> Future[RRef]:
        """Done when the call that makes the value is complete in the profile of this thread."""
        return self._get_future()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RRef) and (self is other or self.handle() == other.handle())

    def __hash__(self) -> int:
        return hash(self.handle())

    def __reduce__(self) -> Any:
        if not has_agent():
            raise RuntimeError(
                "this process is in no group any more, and has given its references back. Cannot call fork an UserRRef "
                "after deletion."
            )
        raise RuntimeError(
            "Can not pickle rref in python pickler: pass it as an argument of a call, or return it from one instead"
        )

    def __repr__(self) -> str:
        what = repr(self.hosted) if self.hosted is not None else str(self._handle or "a value that is being made")
        return f"<RRef of {self.owner_name()}: {what}>"


class Proxy:
    """The methods of a referenced value."""

    def __init__(self, rref: RRef, give: Callable[[Pending[Any]], Any], timeout: float, kind: str) -> None:
        self._rref = rref
        self._give = give
        self._timeout = timeout
        self._kind = kind

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)

        def method(*args: Any, **kwargs: Any) -> Any:
            seconds = agent().seconds(self._timeout)
            handle = self._rref.handle(seconds)
            options = CallOptions(training=None, timeout=seconds, kind=self._kind)
            keep = self._kind == "remote"
            return self._give(calls.call(handle.session, handle, name, args, kwargs, options, keep=keep))

        return method


def _made(pending: Pending[Handle], seconds: float | None) -> Handle:
    """The handle of a value that a call makes; waits so many seconds for it, or as long as the call may take."""
    try:
        return pending.wait(seconds)
    except DeadlineExceededError as error:
        if not pending.done():
            raise DeadlineExceededError(f"{RAN_OUT}: the value is not made yet after {seconds:g} s") from error
        raise caused(error, "RRef creation via rpc.remote() timed out") from error


def future_of(pending: Pending[Any]) -> Future[Any]:
    """A future for a call, which a member waits for when it leaves. Its result can be read afterwards, too."""
    return Future(agent().outstanding(pending), partial(_placed, place=agent().placement.place))


def wrapped(value: Any) -> Any:
    """Replaces the client's handles in a result by references, and places tensors by the device maps."""
    return None if value is None else _placed(value, agent().placement.place)


def _placed(value: Any, place: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return place(value) if isinstance(value, torch.Tensor) else _wrapped(value, once(place))


def _wrapped(value: Any, place: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return place(value)
    if isinstance(value, Handle):
        return RRef.of_handle(value)
    if type(value) in (list, tuple):
        return type(value)(_wrapped(item, place) for item in value)
    if type(value) is dict:
        return {_wrapped(key, place): _wrapped(item, place) for key, item in value.items()}
    codec = codec_of(type(value))
    if codec is not None and any(isinstance(part, Handle) for part in parts_of(value)):
        return codec.decode(_wrapped(codec.encode(value), place))
    return value
