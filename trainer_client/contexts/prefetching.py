"""Looks up for later batches while a program still trains on earlier ones."""

from __future__ import annotations

import asyncio
import inspect
import types
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Sequence,
)
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime.failures import Failure
from ps_wire.runtime.noop import noop
from trainer_client.graph.current import inside
from trainer_client.pending import Pending

if TYPE_CHECKING:
    from trainer_client.contexts.context import Context

B = TypeVar("B")
R = TypeVar("R")


class LookedUp(Generic[R]):
    """What a program has looked up for a batch, and the pass that it belongs to.

        async with looked_up.context as ctx:
            rows = await looked_up

    Awaiting it gives the result of `look_up`, or raises its error. It may be awaited several times.

    Attributes:
        context: The pass in which the look-ups were recorded. Its block has not begun yet.
    """

    def __init__(self, context: Context, result: Pending[R] | asyncio.Task[R]) -> None:
        self.context = context
        self._result = result

    def __await__(self) -> Generator[Any, None, R]:
        return self._result.__await__()

    def wait(self) -> R:
        """Waits for the result in a plain thread, as with the blocking client.

        Raises:
            RuntimeError: It comes on an event loop, so that it has to be awaited.
            Exception: The error of `look_up`.
        """
        if isinstance(self._result, asyncio.Task):
            raise RuntimeError("this result comes on an event loop: use await")
        return self._result.wait()

    def done(self) -> bool:
        """Whether the result or an error is there."""
        return self._result.done()

    def drop(self) -> Iterable[asyncio.Task[R]]:
        """Cancels the look-ups and ends their pass, when nobody will use them. Returns the tasks that are to end."""
        self._result.cancel()
        # Nobody will await them, so errors that have come already are of no account.
        self.context.failures.left = True
        if isinstance(self._result, Pending) and (failure := self._result.failure) is not None:
            failure.read()
        self.context.end()
        return (self._result,) if isinstance(self._result, asyncio.Task) else ()

    def hurry(self) -> None:
        """Sends what has begun: the program may compute for long before it awaits anything."""
        if isinstance(self._result, Pending) and self._result.hurry is not None:
            self._result.hurry()

    def __repr__(self) -> str:
        return f"<LookedUp {'done' if self.done() else 'on its way'}, in {self.context!r}>"


def prefetch(
    open_context: Callable[[], Context],
    loop: asyncio.AbstractEventLoop,
    batches: Iterable[B] | AsyncIterable[B],
    look_up: Callable[[B], Awaitable[R]],
    depth: int,
) -> AsyncGenerator[tuple[B, LookedUp[R]], None]:
    """Arguments and errors as for `Client.prefetch`; `open_context` makes the context of a pass."""
    _check(batches, look_up, depth)
    begin = partial(_begin, open_context, partial(_awaited, look_up, torch.is_grad_enabled()), loop)
    if isinstance(batches, AsyncIterable):
        return _in_turn(_Fetched(aiter(batches), begin, depth))
    return _in_turn(_Window(iter(batches), begin, depth))


def prefetch_in_threads(
    open_context: Callable[[], Context],
    loop: asyncio.AbstractEventLoop,
    batches: Iterable[B],
    look_up: Callable[[B], R],
    depth: int,
) -> Generator[tuple[B, LookedUp[R]], None, None]:
    """The same for plain threads: `look_up` waits for its results itself, in a thread."""
    _check(batches, look_up, depth)
    begin = partial(_begin, open_context, partial(_in_thread, loop, look_up, torch.is_grad_enabled()), loop)
    return _in_turn_of_thread(_Window(iter(batches), begin, depth))


def _check(batches: Any, look_up: Any, depth: Any) -> None:
    if not isinstance(batches, (Iterable, AsyncIterable)):
        raise InvalidArgumentError(f"batches are what can be looped over, not a {type(batches).__name__}")
    if not callable(look_up):
        raise InvalidArgumentError(f"look_up is a function of a batch, not a {type(look_up).__name__}")
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 0:
        raise InvalidArgumentError(f"depth is the number of batches to look up in advance, not {depth!r}")


def _begin(
    open_context: Callable[[], Context],
    run: Callable[[B], Pending[R] | asyncio.Task[R]],
    loop: asyncio.AbstractEventLoop,
    batch: B,
) -> LookedUp[R]:
    """Begins the look-ups for a batch, in a pass of their own. Errors are kept for whoever awaits the result."""
    context = open_context()
    with inside(context), nullcontext() if context.span is None else context.span.ahead():
        try:
            return LookedUp(context, run(batch))
        except Exception as error:
            failed: Pending[R] = Pending(loop)
            failed.resolve(Failure(error))
            return LookedUp(context, failed)


def _awaited(look_up: Callable[[B], Awaitable[R]], grad: bool, batch: B) -> Pending[R] | asyncio.Task[R]:
    # Grad mode belongs to the thread, and another task may have left its own.
    with torch.set_grad_enabled(grad):
        found = look_up(batch)
    if isinstance(found, Pending):
        return found
    if not inspect.isawaitable(found):
        raise InvalidArgumentError(
            f"look_up returns what can be awaited, such as `items(batch)`, not a {type(found).__name__}"
        )

    async def result() -> R:
        return await _stepwise(found, grad)

    return asyncio.ensure_future(result())


def _in_thread(loop: asyncio.AbstractEventLoop, look_up: Callable[[B], R], grad: bool, batch: B) -> Pending[R]:
    def run() -> R:
        with torch.set_grad_enabled(grad):
            found = look_up(batch)
            return found.wait() if isinstance(found, Pending) else found

    return Pending.in_thread(loop, run, cancel=noop)


@types.coroutine
def _stepwise(awaited: Awaitable[R], grad: bool) -> Generator[Any, Any, R]:
    """Awaits something in a grad mode of its own, whatever other tasks of the thread set meanwhile."""
    steps = awaited.__await__()
    advance: Callable[[], Any] = partial(next, steps)
    while True:
        try:
            with torch.set_grad_enabled(grad):
                wanted = advance()
        except StopIteration as end:
            found: R = end.value
            return found
        try:
            advance = partial(steps.send, (yield wanted))
        except BaseException as error:
            advance = partial(steps.throw, error)


async def _in_turn(window: _Window[B, R]) -> AsyncGenerator[tuple[B, LookedUp[R]], None]:
    """The batches, one after the other. Whatever ends this, the look-ups that were not handed out end with it."""
    try:
        while await window.fetch():
            yield window.ready.popleft()
    finally:
        # First the task that fetches, which begins look-ups.
        await asyncio.gather(*window.cancel(), return_exceptions=True)
        await asyncio.gather(*window.drop(), return_exceptions=True)


def _in_turn_of_thread(window: _Window[B, R]) -> Generator[tuple[B, LookedUp[R]], None, None]:
    try:
        while window.fill():
            yield window.ready.popleft()
    finally:
        window.drop()


class _Window(Generic[B, R]):
    """The batches whose look-ups have begun, and that were not handed out yet. When batch n is asked for, those up to
    `n + depth` may begin, so that a look-up lacks at most `depth` steps of its own program."""

    def __init__(self, source: Any, begin: Callable[[B], LookedUp[R]], depth: int) -> None:
        self.ready: deque[tuple[B, LookedUp[R]]] = deque()
        self._source = source
        self._begin = begin
        self._allowed = depth
        self._begun = 0
        self._is_over = False
        self._error: BaseException | None = None

    def fill(self) -> bool:
        """Begins look-ups, as the next batch is asked for; says whether there is one, or raises the source's error."""
        self._allowed += 1
        while self._may_begin:
            try:
                self._add(next(self._source))
            except StopIteration:
                self._is_over = True
            except Exception as error:
                self._fail(error)
        return self._has_next()

    async def fetch(self) -> bool:
        """As `fill`, on an event loop."""
        return self.fill()

    def cancel(self) -> Sequence[asyncio.Task[None]]:
        """Gives up the batch that is awaited. Returns the task that is to end."""
        return ()

    def drop(self) -> list[asyncio.Task[R]]:
        """Ends what nobody will use. Returns the tasks that are to end."""
        tasks = [task for _, looked_up in self.ready for task in looked_up.drop()]
        self.ready.clear()
        # With its traceback, as a cancelled task with its own, it would keep the source for the garbage collector.
        self._error = None
        return tasks

    def _has_next(self) -> bool:
        for _, looked_up in self.ready:
            looked_up.hurry()
        if not self.ready and self._error is not None:
            error, self._error = self._error, None
            raise error
        return bool(self.ready)

    @property
    def _may_begin(self) -> bool:
        return not self._is_over and self._begun < self._allowed

    def _add(self, batch: B) -> None:
        self._begun += 1
        self.ready.append((batch, self._begin(batch)))

    def _fail(self, error: BaseException) -> None:
        self._is_over, self._error = True, error


class _Fetched(_Window[B, R]):
    """The same, of batches that have to be awaited: a task fetches them while the program trains."""

    def __init__(self, source: AsyncIterator[B], begin: Callable[[B], LookedUp[R]], depth: int) -> None:
        super().__init__(source, begin, depth)
        self._in_advance = depth > 0
        self._task: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()

    async def fetch(self) -> bool:
        self._allowed += 1
        if not self._in_advance:
            await self._run()
        elif self._may_begin and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run())
        while not (self.ready or self._is_over):
            self._arrived.clear()
            await self._arrived.wait()
        return self._has_next()

    def cancel(self) -> Sequence[asyncio.Task[None]]:
        task, self._task = self._task, None
        if task is None:
            return ()
        task.cancel()
        return (task,)

    async def _run(self) -> None:
        try:
            while self._may_begin:
                self._add(await anext(self._source))
                self._arrived.set()
        except StopAsyncIteration:
            self._is_over = True
        except (Exception, asyncio.CancelledError) as error:
            self._fail(error)
        finally:
            self._arrived.set()
