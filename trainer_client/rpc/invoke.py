"""Calls functions on members of the group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from ps_wire.codec.names import name_of
from ps_wire.codec.records import codec_of
from ps_wire.errors import DeadlineExceededError, UnavailableError, UnknownNameError
from ps_wire.numbers import check_timeout
from ps_wire.runtime.failures import Failure
from trainer_client.handles import calls
from trainer_client.handles.calls import CallOptions
from trainer_client.pending import Pending
from trainer_client.rpc.current import agent
from trainer_client.rpc.options import UNSET
from trainer_client.rpc.rref import RRef, future_of, wrapped
from trainer_client.rpc.workers import WorkerInfo

if TYPE_CHECKING:
    from trainer_client.rpc.futures import Future

To = str | int | WorkerInfo
"""A member: its name, its number, or its `WorkerInfo`."""


def rpc_sync(
    to: To,
    func: Callable[..., Any] | str,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> Any:
    """Calls a function on a member and waits for its result.

    Inside a context of `trainer_client.autograd` the call is recorded.

    Args:
        to: The member.
        func: A listed function of torch, or one that is marked `@remote` and allowed on that member; it travels by
            name.
        args: Its arguments. Tensors may have any shape and dtype.
        kwargs: Its keyword arguments.
        timeout: Seconds this may take; 0 for no limit, -1 for the default.

    Returns:
        Its result. Tensors are on the CPU.

    Raises:
        NotAllowedError: The function is not allowed on that member.
        RemoteError: It raised an exception. The error is also an instance of the exception's type, if that is built in
            or registered here.
        DeadlineExceededError: The result did not arrive in time.
        UnavailableError: The member could not be reached in time.
        RuntimeError: There is no such member. In an open group, one that is given by name is waited for, as long as the
            call may take, and at most as long as `init_rpc` was allowed to wait.
        TypeError: `func` is no function, `args` no tuple or list, or `kwargs` no dict.
    """
    return wrapped(_call(to, func, args, kwargs, timeout, "sync").wait())


def rpc_async(
    to: To,
    func: Callable[..., Any] | str,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> Future[Any]:
    """Like `rpc_sync`, but returns a future at once."""
    return future_of(_call(to, func, args, kwargs, timeout, "async"))


def remote(
    to: To,
    func: Callable[..., Any] | type | str,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> RRef:
    """Calls a function or a class on a member, leaves the result there, and returns a reference at once.

    An error of the call is raised when the reference is used. Arguments as for `rpc_sync`.

    Raises:
        RuntimeError: There is no such member.
        DeadlineExceededError: The directory did not say in time which member has the number `to`.
    """
    owner = to if isinstance(to, str) else agent().worker(to, agent().longest(timeout)).name
    pending = _call(owner, func, args, kwargs, timeout, "remote")
    return RRef.of_pending(agent().outstanding(pending), owner)


def get_worker_info(worker_name: str | None = None) -> WorkerInfo:
    """The name and number of a member; of this process, if no name is given.

    Raises:
        RuntimeError: There is no member of that name.
    """
    if worker_name is None:
        return WorkerInfo(agent().name, agent().member.id)
    return agent().worker(worker_name)


def get_worker_infos() -> list[WorkerInfo]:
    """The names and numbers of all members that are in the group now, in the order of their numbers."""
    return agent().workers()


def address() -> str:
    """Host and port of this process. If it keeps the directory, others pass it as `directory` to `init_rpc`."""
    return agent().member.address


def get_rpc_timeout() -> float:
    """The default timeout of calls, in seconds; 0 is no limit."""
    return agent().settings.timeout or 0.0


def set_rpc_timeout(seconds: float) -> None:
    """Sets the default timeout of calls, in seconds; 0 is no limit."""
    settings = agent().settings
    check_timeout(seconds or None)
    settings.timeout = seconds or None


def _check_arguments(args: Any, kwargs: Any) -> None:
    """A text or a tensor can be iterated over, too, and would be taken for as many arguments as it has elements."""
    if args is not None and (not isinstance(args, Sequence) or isinstance(args, (str, bytes))):
        raise TypeError(f"args must be a tuple of the arguments, as in args=(x,), not a {type(args).__name__}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict of arguments by name, not a {type(kwargs).__name__}")


def _call(
    to: To,
    func: Callable[..., Any] | type | str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    timeout: float,
    kind: str,
) -> Pending[Any]:
    _check_arguments(args, kwargs)
    given = tuple(args or ())
    if isinstance(func, MethodType):
        bound: MethodType = func
        if codec_of(type(bound.__self__)) is not None:
            # The object travels by value, and its method by name.
            func, given = bound.__func__, (bound.__self__, *given)
    if not callable(func) and not isinstance(func, str):
        raise TypeError(f"func must be a function or its name, not a {type(func).__name__}")
    name = name_of(func)
    try:
        session = agent().session(to, timeout)
    except (UnavailableError, UnknownNameError, DeadlineExceededError) as error:
        failed: Pending[Any] = Pending(agent().loop)
        failed.resolve(Failure(error))
        return failed
    # The name in profiles, as torch writes it; empty for that in messages.
    shown = func.__qualname__ if isinstance(func, (FunctionType, type)) else ""
    options = CallOptions(timeout=agent().seconds(timeout), kind=kind, what=shown)
    return calls.call(session, name, "", given, kwargs or {}, options, keep=kind == "remote")
