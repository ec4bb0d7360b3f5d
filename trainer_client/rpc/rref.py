"""RRefs: references to values of any member of a group, this one included."""

from __future__ import annotations

from collections.abc import Callable
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
    """A reference to a value that lives in one process, its owner, and can be used from all.

    `RRef(value)` makes this process the owner. Other members get references by `rpc.remote`, as arguments, or as
    results; the value lives as long as any of them holds one.

    Args:
        value: Anything. Its methods can be called from elsewhere if they are decorated with `@remote`.
    """

    def __init__(self, value: Any) -> None:
        self._hosted: HostedRRef | None = HostedRRef(value)
        self._handle: Handle | None = None
        self._pending: Pending[Handle] | None = None
        self._owner = ""

    @classmethod
    def of_hosted(cls, rref: HostedRRef) -> RRef:
        """A reference to something the owner here hosts."""
        made = cls.__new__(cls)
        made._hosted, made._handle, made._pending, made._owner = rref, None, None, ""
        return made

    @classmethod
    def of_handle(cls, handle: Handle) -> RRef:
        """What a handle of the client refers to."""
        made = cls.__new__(cls)
        made._hosted, made._handle, made._pending, made._owner = None, handle, None, handle.owner
        return made

    @classmethod
    def of_pending(cls, pending: Pending[Handle], owner: str) -> RRef:
        """What a handle on its way will refer to."""
        made = cls.__new__(cls)
        made._hosted, made._handle, made._pending, made._owner = None, None, pending, owner
        return made

    @property
    def hosted(self) -> HostedRRef | None:
        """As the owner here knows it; None if it came as a handle."""
        return self._hosted

    def handle(self) -> Handle:
        """As the client here knows it; a value of this process gets one now.

        Raises:
            PsError: Whatever went wrong when the value was made.
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
        """Its name."""
        return self._owner or agent().name

    def is_owner(self) -> bool:
        """Whether that is this process."""
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
        """The value, copied here if it is elsewhere.

        Args:
            timeout: Seconds this may take; 0 for as long as it takes.
        """
        if self._hosted is not None:
            return self._hosted.local_value()
        return wrapped(self.handle().to_here(agent().seconds(timeout)).wait())

    def rpc_sync(self, timeout: float = UNSET) -> Proxy:
        """Calls methods of the value, and waits: `rref.rpc_sync().method(...)`."""
        return Proxy(self, lambda pending: wrapped(pending.wait()), timeout, keep=False)

    def rpc_async(self, timeout: float = UNSET) -> Proxy:
        """Calls methods of the value, and gives futures."""
        return Proxy(self, lambda pending: agent().future(pending), timeout, keep=False)

    def remote(self, timeout: float = UNSET) -> Proxy:
        """Calls methods of the value, leaves the results where they are, and gives references to them."""
        owner = self.owner_name()
        return Proxy(self, lambda pending: RRef.of_pending(agent().outstanding(pending), owner), timeout, keep=True)

    def backward(self, context_id: int = -1, retain_graph: bool = False) -> None:
        """Propagates from the value, which is a tensor of one element.

        Args:
            context_id: The pass; -1 for torch's own backward, on the owner only.
            retain_graph: Whether the same graph shall be propagated again.

        Raises:
            RuntimeError: It is no tensor, or is elsewhere and no pass was named.
        """
        if context_id == -1 and not self.is_owner():
            raise RuntimeError("backward() of a value that is elsewhere needs a context id")
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
        raise TypeError("a reference is not pickled: pass it as an argument of a call, or return it from one")

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
    """A result with references in the place of the client's handles."""
    if isinstance(value, Handle):
        return RRef.of_handle(value)
    if type(value) in (list, tuple):
        return type(value)(map(wrapped, value))
    if type(value) is dict:
        return {wrapped(key): wrapped(item) for key, item in value.items()}
    return value
