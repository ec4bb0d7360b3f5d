"""A wrapper that makes the asynchronous client blocking.

There is no second implementation: a `Blocking` wraps any object of the asynchronous client, and waits for every
`Pending` that its methods return.
"""

from __future__ import annotations

import functools
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ps_wire.limits import MAX_DEPTH
from ps_wire.runtime.failures import shortened
from ps_wire.runtime.noop import noop
from trainer_client.client.passes import ATTEMPTS, Attempts, PassMethods, check_functions, not_coroutine, told_lost
from trainer_client.collectives.communicator import Communicator
from trainer_client.contexts.context import Context
from trainer_client.contexts.prefetching import LookedUp
from trainer_client.handles.handles import RemoteModule
from trainer_client.handles.references import RRef
from trainer_client.optimizers.optimizer import DistributedOptimizer
from trainer_client.optimizers.scheduler import DistributedScheduler
from trainer_client.pending import Pending
from trainer_client.replicas.local_steps import LocalSteps
from trainer_client.replicas.pushing import Pushing
from trainer_client.replicas.replica import Replica, Replicas
from trainer_client.serving.pinned_module import PinnedModule
from trainer_client.serving.pinned_table import PinnedTable
from trainer_client.serving.readers import Reader
from trainer_client.serving.snapshots import Snapshot
from trainer_client.tables.schedules import SchedulerWithTables
from trainer_client.tables.table import Table
from trainer_client.tables.together import OptimizerWithTables

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")

_WRAPPED = (
    *(PassMethods, Communicator, Context, RRef, DistributedOptimizer, DistributedScheduler, LocalSteps),
    *(LookedUp, OptimizerWithTables, Reader, SchedulerWithTables, Table, Snapshot, PinnedTable, PinnedModule),
)

_IN_THIS_THREAD = {
    (PassMethods, "prefetch"): "prefetch_in_threads",
    (Context, "backward"): "propagate",
    (DistributedOptimizer, "step"): "apply",
    (OptimizerWithTables, "step"): "apply",
    (RemoteModule, "changes"): "changes_in_thread",
    (PinnedTable, "blocks"): "blocks_in_thread",
    (Table, "blocks"): "blocks_in_thread",
    (Table, "changes"): "changes_in_thread",
}
"""Methods that the calling thread runs itself instead of waiting for another thread. They take the same arguments."""


class Blocking:
    """Wraps an object of the client; calls block until their result is there.

    Attributes:
        unwrapped: The wrapped object. Its methods return `Pending`s, so that many calls can be in flight.
    """

    def __init__(self, unwrapped: Any) -> None:
        self.unwrapped = unwrapped

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.unwrapped, name)
        if not callable(value) or isinstance(value, (*_WRAPPED, Pending)):
            return wrapped(value)
        # A client may be of a class that derives from the one with the method.
        in_thread = next(
            filter(None, (_IN_THIS_THREAD.get((each, name)) for each in type(self.unwrapped).__mro__)), None
        )
        called = value if in_thread is None else getattr(self.unwrapped, in_thread)

        @functools.wraps(value)
        def method(*args: Any, **kwargs: Any) -> Any:
            try:
                return wrapped(called(*_unwrapped(args), **_unwrapped(kwargs)))
            except Exception as error:
                if called is not value and isinstance(error, TypeError):
                    _names(error, called, value)
                shortened(error)
                raise

        # Later look-ups find it without calling `__getattr__`.
        self.__dict__[name] = method
        return method

    @property
    def __ps_handle__(self) -> Any:
        """What gives the handle that is sent in its place, where it is in an instance of a class by value; or None."""
        behind = self.unwrapped
        return (lambda: behind) if isinstance(behind, RRef) else getattr(behind, "__ps_handle__", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _called(self.unwrapped, args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        return wrapped(self.unwrapped[_unwrapped(key)])

    def __enter__(self) -> Self:
        self.unwrapped.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self.unwrapped.__exit__(*raised)

    def __eq__(self, other: object) -> bool:
        return bool(self.unwrapped == (other.unwrapped if isinstance(other, Blocking) else other))

    def __hash__(self) -> int:
        return hash(self.unwrapped)

    def __str__(self) -> str:
        return str(self.unwrapped)

    def __repr__(self) -> str:
        return repr(self.unwrapped)

    def __dir__(self) -> list[str]:
        return dir(self.unwrapped)


class BlockingClient(Blocking):
    """A client whose calls block. `close` ends it, as the end of its block does."""

    def __init__(self, unwrapped: Any, close: Callable[[], None] = noop) -> None:
        super().__init__(unwrapped)
        self._close = close

    def close(self) -> None:
        """Closes all sessions; owners free what this trainer held. Does nothing the second time, and in a fork."""
        self._close()

    def run(
        self,
        step: Callable[..., T],
        *args: Any,
        attach: Callable[[], Any] | None = None,
        attempts: int = ATTEMPTS,
    ) -> T:
        """Like `Client.run`, with functions that run in this thread."""
        client: PassMethods = self.unwrapped
        check_functions(step, attach)
        tried = Attempts(attempts, attach is not None)
        with client._running() as run:
            while True:
                try:
                    if tried.is_again and attach is not None:
                        not_coroutine("attach", attach())
                    with client._attempt(run) as ctx, told_lost(ctx):
                        return not_coroutine("step", step(Blocking(ctx), *args))
                except Exception as error:
                    tried.failed(error)


def _like(method: Callable[..., Any]) -> Callable[[Any], Any]:
    """Gives a method the name, the signature and the text of another one."""
    return functools.wraps(method)


class _Waiting:
    """Pulls and pushes that wait for their result. Unlike a `Blocking`, a replica of this class is a module itself."""

    @_like(Replica.pull)
    def pull(self, *args: Any, **kwargs: Any) -> Any:
        return super().pull(*args, **kwargs).wait()  # type: ignore[misc]

    @_like(Pushing.push)
    def push(self, *args: Any, **kwargs: Any) -> Any:
        return super().push(*_unwrapped(args), **_unwrapped(kwargs)).wait()  # type: ignore[misc]

    @_like(Pushing.finish)
    def finish(self, *args: Any, **kwargs: Any) -> Any:
        return super().finish(*args, **kwargs).wait()  # type: ignore[misc]

    @_like(Pushing.unscale_)
    def unscale_(self, *args: Any, **kwargs: Any) -> Any:
        super().unscale_(*args, **_unwrapped(kwargs)).wait()  # type: ignore[misc]

    @_like(Replica.local_steps)
    def local_steps(self, *args: Any, **kwargs: Any) -> Any:
        return Blocking(super().local_steps(*_unwrapped(args), **_unwrapped(kwargs)))  # type: ignore[misc]


class BlockingReplica(_Waiting, Replica):
    """A replica whose pulls and pushes block."""


class BlockingReplicas(_Waiting, Replicas):
    """Like `BlockingReplica`, for several."""


class BlockingOptimizer(Blocking):
    """An optimizer whose calls block."""


# As that of what it wraps.
BlockingOptimizer.__name__ = DistributedOptimizer.__name__

_WRAPPERS: dict[type, type[Blocking]] = {
    DistributedOptimizer: BlockingOptimizer,
    OptimizerWithTables: BlockingOptimizer,
}

_BLOCKING: dict[type, type] = {Replica: BlockingReplica, Replicas: BlockingReplicas}


def wrapped(value: Any) -> Any:
    """The blocking form of a value: waits for a `Pending`, and wraps objects of the client, also in containers."""
    if isinstance(value, Pending):
        value = value.wait()
    if isinstance(value, _WRAPPED):
        return _WRAPPERS.get(type(value), Blocking)(value)
    if type(value) in _BLOCKING:
        value.__class__ = _BLOCKING[type(value)]
        return value
    if type(value) in (list, tuple):
        return type(value)(map(wrapped, value))
    if isinstance(value, GeneratorType):
        return map(wrapped, value)
    if type(value) is dict:
        return {wrapped(key): wrapped(item) for key, item in value.items()}
    return value


def _names(error: TypeError, called: Callable[..., Any], shown: Callable[..., Any]) -> None:
    """An error of the arguments of a function names the method that the program has called."""
    text = str(error)
    if text.startswith(f"{called.__qualname__}()"):
        error.args = (shown.__qualname__ + text.removeprefix(called.__qualname__),)


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return wrapped(function(*_unwrapped(args), **_unwrapped(kwargs)))
    except Exception as error:
        shortened(error)
        raise


def _unwrapped(value: Any, depth: int = 0) -> Any:
    if isinstance(value, Blocking):
        return value.unwrapped
    if depth > MAX_DEPTH:
        return value  # it is refused, as without this wrapper
    if type(value) in (list, tuple):
        return type(value)(_unwrapped(item, depth + 1) for item in value)
    if type(value) is dict:
        return {_unwrapped(key, depth + 1): _unwrapped(item, depth + 1) for key, item in value.items()}
    return value
