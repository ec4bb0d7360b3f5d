"""One request that a compute thread runs, from when it is queued until its answer."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from ps_service.execution.fair_queue import WorkItem
from ps_service.requests import error_answers
from ps_service.requests.context import RequestContext
from ps_service.requests.run_handler import handle, run_inline
from ps_wire.runtime.noop import noop
from ps_wire.runtime.scopes import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ps_service.access.identities import Asker
    from ps_service.engine import Engine
    from ps_service.execution.fair_queue import Work
    from ps_service.requests.operations import Operation
    from ps_service.sessions.reply_cache import Answer
    from ps_wire.codec.payload import Buffer


class Observer:
    """Receives the events of executions on the event loop. `is_full` and `made` are used in any thread.

    `made` has the sizes of the answers that threads have made and the event loop has not handled yet: a list, because
    `append` and `remove` are atomic.
    """

    made: list[int]

    @property
    def is_full(self) -> bool:
        """Whether no large answers may be made now."""
        return False

    def hold(self, execution: Execution) -> None:
        """The execution was not begun because the observer is full; the observer calls `submit` later."""

    def begin_wait(self, execution: Execution) -> None:
        """The code that runs for the execution waits for a request of its own."""

    def release(self, execution: Execution, waits: bool = False) -> None:
        """The execution no longer needs its payload; `waits` if it has no answer yet."""

    def finished(self, execution: Execution, answer: Answer) -> None:
        """The execution has its answer."""


class Execution:
    """One queued request, which counts as running from the beginning. It has exactly one answer, the first of these:

        submit -> _run -> _answer                               it ran, or raised
        start -> submit or _answer                              it followed other requests
                           _run -> _resume -> _finish -> _answer    its result came later
        expire, cancel, cut_off, drop -> give_up -> _answer     its result is no longer waited for

    The observer calls `expire` after `seconds` (0 is no limit), for which it may keep a `deadline` on the clock of the
    event loop; until `start`, the request `follows` those with these numbers. `nbytes` of its payload count as a
    request, and `waiting_bytes` as one that waits for others.
    """

    def __init__(
        self,
        ctx: RequestContext,
        operation: Operation,
        request: Any,
        observer: Observer,
        number: int = 0,
        seconds: float = 0.0,
        depth: int = 0,
        item: WorkItem | None = None,
    ) -> None:
        self.ctx = ctx
        self.operation = operation
        self.request = request
        self.number = number
        self.seconds = seconds
        self.deadline = 0.0
        self.follows: set[int] = set()
        self.nbytes = 0
        self.waiting_bytes = 0
        self.begun = False
        self._observer = observer
        self._depth = depth
        self._answered = False
        self._due = False
        self._lock = threading.Lock()
        # Weak, because a reference cycle would keep the execution and its answer until the garbage collector runs.
        self._scope = Scope(seconds, depth, partial(_nests, weakref.ref(self)))
        # A nested request goes first, because code on another owner waits for it.
        self._item = item or WorkItem(ctx.trainer, depth > 0)
        self._item.apart = operation.apart
        if ctx.asker is not None:
            self._item.group = ctx.asker.identity.name
        if self._item.account is None and ctx.engine.quotas.is_on:
            self._item.account = ctx.account
        self._item.what = partial(error_answers.title, ctx.engine, operation.name, request)
        ctx.engine.counters.running += not operation.apart

    # On the event loop

    def start(self) -> None:
        """Runs a request that has waited: inline if it is short, otherwise in a compute thread."""
        if self._answered:
            return
        ctx, operation = self.ctx, self.operation
        ctx.began = time.perf_counter()
        answer = None
        if not (operation.large and self._observer.is_full):
            answer = run_inline(ctx, operation, self.request, self.number)
        if answer is None:
            self.submit()
        else:
            self._answer(answer)

    def submit(self) -> None:
        """Lets a compute thread run the request; the observer receives the answer, or holds it and submits it again."""
        # A try on the event loop may have stopped.
        self.ctx.restart()
        self.ctx.engine.compute.submit(self._run, self._item)

    def expire(self) -> None:
        """Gives the request up, because its deadline has passed."""
        engine = self.ctx.engine
        what = error_answers.named_title(engine, self.operation.name, self.request)
        self.give_up(error_answers.too_late(engine, what, self.seconds, self.number))

    def cancel(self) -> None:
        """Gives the request up, because its trainer has cancelled it. It does not run if no thread has begun to."""
        self.give_up(error_answers.cancelled(self.number))

    def cut_off(self) -> None:
        """Gives the request up, because the owner stops; the caller gets an error."""
        self.give_up(error_answers.cut_off(self.ctx.engine, self.number))

    def drop(self, even_if_begun: bool) -> bool:
        """Drops the request without an answer, because the owner stops and the request will be sent again; false if
        that is not done because it has begun."""
        with self._lock:
            if (self.begun or self.ctx.progress is not None) and not even_if_begun:
                return False
            self._answered = True
        self.cut_off()
        return True

    def give_up(self, answer: Answer) -> None:
        """Gives the request another answer, because its result is no longer waited for."""
        self._scope.cancel()
        self._answer(self._refused(answer))
        # Last of all, because it must not begin any more afterwards.
        self.ctx.engine.compute.abandon(self._item)

    @property
    def is_due(self) -> bool:
        """Whether its result was deferred and is there now."""
        return self._due and not self._answered

    def _answer(self, answer: Answer) -> None:
        if self._answered:
            return
        self._answered = True
        self.ctx.engine.counters.running -= not self.operation.apart
        self._observer.finished(self, answer)

    # In a compute thread

    def _run(self) -> Work:
        ctx, item, observer = self.ctx, self._item, self._observer
        engine = ctx.engine
        with self._lock:
            if self._answered:
                return noop
            if self.operation.large and not self._depth and observer.is_full:
                return partial(observer.hold, self)
            self.begun = True
        engine.counters.queued(time.perf_counter() - ctx.began)
        answer: Answer | None
        if engine.compute.has_lost_enough(item.whose) and not item.apart:
            answer = self._refused(error_answers.overdrawn(engine, self.number))
        else:
            answer = self._handled()
        if answer is None:
            return self._wait()
        observer.made.append(answer.nbytes)
        return partial(self._ran, answer)

    def _ran(self, answer: Answer) -> None:
        self._observer.made.remove(answer.nbytes)
        self._came(answer)

    def _wait(self) -> Work:
        """Frees the thread until the result is there."""
        ctx = self.ctx
        assert ctx.deferred is not None
        if not ctx.keeps_payload:
            ctx.let_go()
        ctx.engine.counters.wait(1)
        ctx.deferred.when_done(self._resume)
        return noop if ctx.keeps_payload else partial(self._observer.release, self, True)

    def _resume(self) -> None:
        """Continues with the deferred result. Called in the thread that sets it."""
        self.ctx.engine.counters.wait(-1)
        self._due = True
        of, group, account = self._item.of, self._item.group, self._item.account
        self.ctx.engine.compute.submit(self._finish, WorkItem(of, urgent=True, group=group, account=account))

    def _finish(self) -> Work:
        if self._answered:
            self.ctx.forget_deferred()
            return partial(self._observer.release, self)
        answer = self._handled()
        assert answer is not None
        return partial(self._came, answer)

    def _handled(self) -> Answer | None:
        ctx = self.ctx
        if ctx.engine.durability.log is None:
            return handle(ctx, self.operation, self.request, self.number, self._scope)
        # A step is in the log before it is made.
        ctx.after = []
        try:
            return handle(ctx, self.operation, self.request, self.number, self._scope)
        finally:
            ctx.run_after()
            ctx.after = None

    def _came(self, answer: Answer) -> None:
        self._answer(answer)
        self._observer.release(self)

    def _refused(self, answer: Answer) -> Answer:
        """Counts the request as failed, and takes back what it has granted."""
        ctx = self.ctx
        if ctx.probe is not None:
            ctx.probe.ended(answer.reply)
        ctx.engine.counters.count(self.operation.name, time.perf_counter() - ctx.began, answer.reply.error.code)
        ctx.give_back()
        return answer


def _nests(of: weakref.ref[Execution]) -> None:
    """Notes that the code that runs for an execution makes a nested request. Called in any thread."""
    execution = of()
    if execution is not None and execution.nbytes:
        execution.ctx.engine.compute.tell(partial(execution._observer.begin_wait, execution))


class Waiter(Observer):
    """Waits for the answer of one execution."""

    def __init__(self) -> None:
        self.made = []
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def finished(self, execution: Execution, answer: Answer) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)

    async def run(self, execution: Execution) -> Answer:
        """Runs an execution and returns its answer. Never raises: if this task is cancelled, so is the request."""
        timer = None
        if execution.seconds:
            timer = asyncio.get_running_loop().call_later(execution.seconds, execution.expire)
        execution.submit()
        try:
            return await asyncio.shield(self._answer)
        except asyncio.CancelledError:
            execution.cancel()
            return self._answer.result()
        finally:
            if timer is not None:
                timer.cancel()


async def answer(
    engine: Engine,
    trainer: bytes,
    operation: Operation,
    request: Any,
    payload: Buffer | None = None,
    timeout_seconds: float = 0.0,
    embed: bool = False,
    item: WorkItem | None = None,
    number: int = 0,
    asker: Asker | None = None,
    caller: Mapping[str, str] | None = None,
    begun: Callable[[RequestContext], object] = noop,
) -> Answer:
    """The answer to one request, which may be an error. Never raises.

    The caller waits for `timeout_seconds` (0: without limit). With `embed` the tensor bytes of the reply are part of
    its message. A unary request may have a `number`, there is an `asker` if its sender was asked who it is, and a
    `caller` if its address is known. `begun` gets the context of one that is not refused.
    """
    if not engine.gate.admits(trainer, operation, request):
        refused = error_answers.stopping(engine)
        engine.counters.refuse(refused.reply.error.code)
        return refused
    ctx = RequestContext(engine, trainer, payload, embed, number=number, caller=caller)
    ctx.asker = asker
    begun(ctx)
    answered = run_inline(ctx, operation, request, number=0)
    if answered is not None:
        return answered
    waiter = Waiter()
    return await waiter.run(Execution(ctx, operation, request, waiter, seconds=timeout_seconds, item=item))
