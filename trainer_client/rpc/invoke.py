"""Invoke: calls of functions on members of the group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any

from ps_wire.codec.names import name_of
from ps_wire.codec.records import codec_of
from trainer_client.handles import calls
from trainer_client.rpc.current import agent
from trainer_client.rpc.options import UNSET
from trainer_client.rpc.rref import RRef, wrapped
from trainer_client.rpc.workers import WorkerInfo

if TYPE_CHECKING:
    from trainer_client.pending import Pending
    from trainer_client.rpc.futures import Future

To = str | int | WorkerInfo
"""How a member is named: by name, by number, or as `get_worker_info` gives it."""


def rpc_sync(
    to: To,
    func: Callable[..., Any] | str,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> Any:
    """Calls a function on a member and waits for what it returns.

    Inside a context of `trainer_client.autograd` the call is recorded.

    Args:
        to: The member.
        func: A function of torch's, or one that is decorated with `@remote` and is known there: it travels by its name.
        args: Its arguments.
        kwargs: Its keyword arguments.
        timeout: Seconds this may take; 0 for as long as it takes, -1 for the default.

    Raises:
        NotAllowedError: The function may not be called there.
        RemoteError: It raised. When that was one of Python's common exceptions, this is one as well.
        DeadlineExceededError: The time was over.
    """
    return wrapped(_call(to, func, args, kwargs, timeout, keep=False).wait())


def rpc_async(
    to: To,
    func: Callable[..., Any] | str,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> Future[Any]:
    """Like `rpc_sync`, but gives a future at once."""
    return agent().future(_call(to, func, args, kwargs, timeout, keep=False))


def remote(
    to: To,
    func: Callable[..., Any] | type | str,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> RRef:
    """Calls a function, or makes an object of a class, on a member, leaves it there, and gives a reference at once.

    What goes wrong is told when the reference is used.
    """
    owner = agent().worker(to).name
    pending = _call(to, func, args, kwargs, timeout, keep=True)
    return RRef.of_pending(agent().outstanding(pending), owner)


def get_worker_info(worker_name: str | None = None) -> WorkerInfo:
    """A member of the group; this process, without a name.

    Raises:
        RuntimeError: There is none of that name.
    """
    if worker_name is None:
        return WorkerInfo(agent().name, agent().member.id)
    return agent().worker(worker_name)


def address() -> str:
    """Host and port at which this process can be called: what others give as `directory`, if it keeps that."""
    return agent().member.address


def get_rpc_timeout() -> float:
    """Seconds a call may take by default; 0 for as long as it takes."""
    return agent().timeout or 0.0


def set_rpc_timeout(seconds: float) -> None:
    """Sets how many seconds a call may take by default; 0 for as long as it takes."""
    agent().timeout = seconds or None


def _call(
    to: To,
    func: Callable[..., Any] | type | str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    timeout: float,
    keep: bool,
) -> Pending[Any]:
    given = tuple(args or ())
    if isinstance(func, MethodType):
        bound: MethodType = func
        if codec_of(type(bound.__self__)) is not None:
            # The object travels by value, and its method by name.
            func, given = bound.__func__, (bound.__self__, *given)
    if not callable(func) and not isinstance(func, str):
        raise TypeError(f"a function is needed, or its name, not a {type(func).__name__}")
    return calls.call(
        agent().session(to),
        name_of(func),
        "",
        given,
        kwargs or {},
        keep=keep,
        timeout=agent().seconds(timeout),
    )
