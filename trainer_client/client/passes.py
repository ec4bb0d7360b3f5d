"""The passes of a client: contexts, passes that are run again when an owner has lost them, and look-ups in advance."""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ps_wire.errors import (
    CancelledCallError,
    ClosedError,
    ContextEndedError,
    ContextLostError,
    DrainingError,
    InvalidArgumentError,
    ObjectMovedError,
    PsError,
    SessionLostError,
    StaleHandleError,
)
from ps_wire.refs import ContextId
from ps_wire.shown import shown
from trainer_client.contexts import prefetching
from trainer_client.contexts.context import Context
from trainer_client.pending import Pending

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterable,
        Awaitable,
        Callable,
        Coroutine,
        Generator,
        Iterable,
        Iterator,
    )

    from ps_wire.tracing import Tracing
    from trainer_client.contexts.prefetching import LookedUp
    from trainer_client.graph.current import Openings
    from trainer_client.graph.leaves import LocalGradients
    from trainer_client.handles.other_owners import OtherOwners
    from trainer_client.numerics import Seeding
    from trainer_client.session.runs import Run, Runs

_log = logging.getLogger(__name__)

B = TypeVar("B")
R = TypeVar("R")
T = TypeVar("T")

ATTEMPTS: Final = 3
"""How often a pass is run at most, unless the program says otherwise."""

_MOST_DRAINS: Final = 100
"""How often it is run again, besides, because an owner was stopped in order."""

_LOST: Final = (ContextLostError, SessionLostError, DrainingError, ObjectMovedError)
"""Errors after which a pass can be run again: an owner does not have it any more."""


class Attempts:
    """Decides whether a pass is run again, and counts how often; with `attaches` the program gets its handles again."""

    def __init__(self, most: int, attaches: bool) -> None:
        if not isinstance(most, int) or most < 1:
            raise InvalidArgumentError(f"attempts is how often a pass is run at most, at least 1, not {most!r}")
        self._most = most
        self._made = self._drained = 0
        # Stale handles stay so, unless there are new ones.
        self._lost: tuple[type[PsError], ...] = (*_LOST, StaleHandleError) if attaches else _LOST

    @property
    def is_again(self) -> bool:
        """Whether the pass was run before."""
        return self._made + self._drained > 0

    def failed(self, error: Exception) -> None:
        """Takes note that the pass has raised; raises that again if it is not run again."""
        if not isinstance(error, self._lost):
            raise error
        if (error.drained or isinstance(error, ObjectMovedError)) and self._drained < _MOST_DRAINS:
            self._drained += 1
            _log.warning("a pass is run again, and does not count as lost: %s", error)
            return
        self._made += 1
        if self._made >= self._most:
            error.add_note(f"the pass was run {self._made + self._drained} times, and lost each time")
            raise error
        _log.warning("a pass was lost and is run again (%d of %d): %s", self._made + 1, self._most, error)


def check_functions(step: object, attach: object) -> None:
    """Raises `InvalidArgumentError` if `run` was given no functions."""
    for name, given in (("step", step), *([] if attach is None else [("attach", attach)])):
        if not callable(given):
            raise InvalidArgumentError(f"run(step, …, attach=…) takes functions, and {name} is {shown(given)}")


def _coroutine(name: str, made: Awaitable[T]) -> Awaitable[T]:
    """What a function of `run` has returned. Raises `InvalidArgumentError` if it is to be awaited and cannot be."""
    if not inspect.isawaitable(made):
        raise InvalidArgumentError(
            f"{name} of run() is a coroutine function, `async def {name}(…)`; the blocking client takes ordinary ones"
        )
    return made


def not_coroutine(name: str, made: T) -> T:
    """The same for the blocking client, which awaits nothing."""
    if inspect.iscoroutine(made):
        made.close()  # or Python warns that it was never awaited
        raise InvalidArgumentError(f"{name} of run() is an ordinary function with the blocking client, not `async def`")
    return made


@contextmanager
def told_lost(context: Context) -> Iterator[None]:
    """An owner that says that a pass has ended, which its program has not ended, has lost it: so had the owner whose
    code has called it in the pass, and which has told it the end."""
    try:
        yield
    except ContextEndedError as error:
        if context.ended:
            raise
        raise ContextLostError(f"an owner that was called in it has lost context {context.id}: {error}") from error


class PassMethods:
    """What a client does with passes."""

    trainer: bytes
    closed: bool
    others: OtherOwners
    keep: Callable[[ContextId], LocalGradients] | None
    _loop: asyncio.AbstractEventLoop
    _openings: Openings
    _runs: Runs
    _seeding: Seeding
    _tracing: Tracing | None

    def context(self) -> Context:
        """A new context, for one pass: `async with ps.context() as ctx`.

        Raises:
            ClosedError: The client is closed.
        """
        if self.closed:
            raise ClosedError("this client is closed")
        id = ContextId(self.trainer, self._openings.number())
        gradients = None if self.keep is None else self.keep(id)
        seeds = self._seeding.seeds
        if seeds is not None:
            seeds = seeds.branch()
        return Context(id, self._loop, self.others.reach, seeds, self._openings, gradients, self._tracing)

    def _attempt(self, run: Run | None) -> Context:
        """A new context for an attempt of a pass; None for a pass that is not run again."""
        context = self.context()
        if run is not None:
            context.attempt = run.attempt(context.message)
        return context

    @contextmanager
    def _running(self) -> Iterator[Run]:
        """A pass with all of its attempts."""
        run = self._runs.begin()
        try:
            yield run
        finally:
            self._runs.end(run)

    def manual_seed(self, seed: int | None) -> None:
        """Seeds the random numbers that owners draw for this trainer's later calls.

        Each call gets a seed of its own. It is derived from this seed, the number of the call in its context, and the
        number of the context since this call; outside of contexts from the number of the call. So the random numbers
        are the same in every run, whatever other trainers do. The generators of this process are not changed.

        Args:
            seed: Any integer; None lets later calls draw from the owners' default generators.
        """
        self._seeding.begin(seed)

    def run(
        self,
        step: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        attach: Callable[[], Awaitable[Any]] | None = None,
        attempts: int = ATTEMPTS,
    ) -> Pending[T]:
        """Runs one pass, `step(ctx, *args)` in a new context, and runs it again if an owner has lost it.

            async def step(ctx, x, y):
                loss = F.nll_loss(await net(x), y)
                await ctx.backward(loss, step=opt)
                return loss.item()

            loss = await ps.run(step, x, y, attach=attach)

        A pass is lost when an owner restarts, ends the pass or the session, or drains while a step waits for others. An
        optimizer that has applied a step of the pass in one attempt does not apply it again in the next, so that it
        counts once on each owner, and here. With the blocking client `step` and `attach` are ordinary functions, which
        run in the calling thread.

        Args:
            step: One pass. It is handed the context, and ends with its step.
            args: Its other arguments.
            attach: Asks for the objects again, as at the beginning, and puts the handles where `step` finds them. It
                runs before each repetition: an owner that was killed has lost what its last checkpoint does not have.
                Without it, a pass whose handles are stale is not run again.
            attempts: How often the pass is run at most. Attempts that end because an owner is stopped in order do not
                count, up to a hundred of them.

        Returns:
            What `step` returns.

        Raises:
            ContextLostError, SessionLostError, DrainingError, StaleHandleError: The last attempt has raised it.
            CancelledCallError: Something that `step` or `attach` awaited was cancelled.
            InvalidArgumentError: `step` or `attach` is no coroutine function; or, with the blocking client, is one.
            Exception: `step` or `attach` has raised it.
        """
        check_functions(step, attach)
        return Pending.run(self._loop, self._repeated(step, args, attach, Attempts(attempts, attach is not None)))

    async def _repeated(
        self,
        step: Callable[..., Coroutine[Any, Any, T]],
        args: tuple[Any, ...],
        attach: Callable[[], Awaitable[Any]] | None,
        attempts: Attempts,
    ) -> T:
        with self._running() as run:
            while True:
                try:
                    if attempts.is_again and attach is not None:
                        await _coroutine("attach", attach())
                    async with self._attempt(run) as ctx:
                        with told_lost(ctx):
                            return await _coroutine("step", step(ctx, *args))
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    raise CancelledCallError("the pass was not cancelled, but something that it awaited was") from error
                except Exception as error:
                    attempts.failed(error)

    def prefetch(
        self, batches: Iterable[B] | AsyncIterable[B], look_up: Callable[[B], Awaitable[R]], *, depth: int = 2
    ) -> AsyncGenerator[tuple[B, LookedUp[R]], None]:
        """Looks up for the next batches while the program trains on the present one.

            async for batch, looked_up in ps.prefetch(batches, lambda batch: items(batch.ids), depth=2):
                async with looked_up.context as ctx:
                    await ctx.backward(loss(await looked_up, batch), step=opt)

        Each batch has a pass of its own, and its look-ups are recorded there. When a batch is handed out, the look-ups
        of at most `depth` later ones have begun. So what is looked up lacks at most `depth` steps of this program;
        with `depth=0` nothing is looked up in advance, and it lacks none. The staleness that policies see counts them.

        Leaving the loop early ends what was begun in advance: at once with `contextlib.aclosing`, or when Python drops
        the generator.

        Args:
            batches: The batches. If they have to be awaited, a task fetches them in advance, too; others are taken from
                the iterator in the loop's own thread.
            look_up: Called with each batch, in its pass. It returns what can be awaited, and may call anything that is
                recorded, not only tables. Its errors are raised where the result is awaited.
            depth: How many batches to look up in advance.

        Yields:
            Each batch with what was looked up for it.

        Raises:
            InvalidArgumentError: `depth` is negative, or `look_up` is no function.
            Exception: The batches raised it; batches before it were handed out.
        """
        return prefetching.prefetch(self.context, self._loop, batches, look_up, depth)

    def prefetch_in_threads(
        self, batches: Iterable[B], look_up: Callable[[B], R], *, depth: int = 2
    ) -> Generator[tuple[B, LookedUp[R]], None, None]:
        """`prefetch` for plain threads, and of the blocking client: `look_up` waits for its results, in a thread."""
        return prefetching.prefetch_in_threads(self.context, self._loop, batches, look_up, depth)
