"""Runs one request: on the event loop or in a compute thread, answered now or later."""

from __future__ import annotations

import asyncio
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ps_service.execution.fair_queue import WorkItem
from ps_service.parameters.locks import WouldBlock
from ps_service.requests.answers import cancelled, cut_off, explain, failure, overdrawn, too_late
from ps_service.requests.titles import title
from ps_wire.runtime.scopes import Scope, current_scope
from ps_wire.v1.frames_pb2 import Frame

if TYPE_CHECKING:
    from ps_service.execution.fair_queue import Work
    from ps_service.requests.context import RequestContext
    from ps_service.requests.operations import Operation
    from ps_service.sessions.reply_cache import Answer

_INLINE_BYTES: Final = 64 * 1024
"""Requests with larger payloads run in a thread, whatever they do."""


class Observer:
    """Is told what becomes of executions, on the event loop; but `is_full` may be asked in any thread.

    Attributes:
        made: Lengths of answers that threads have made, and the event loop has not seen yet. A list, because its
            `append` and `remove` are atomic.
    """

    made: list[int]

    @property
    def is_full(self) -> bool:
        """Whether no large answers shall be made now."""
        return False

    def hold(self, execution: Execution) -> None:
        """It was not begun because the observer is full; the observer calls `submit` later."""

    def begin_wait(self, execution: Execution) -> None:
        """The code that runs for it waits for a request of its own."""

    def release(self, execution: Execution, waits: bool = False) -> None:
        """Its payload is of no more use; `waits` if it has no answer yet."""

    def finished(self, execution: Execution, answer: Answer) -> None:
        """It has its answer."""


class Execution:
    """One request, from its admission to its answer. It has one answer, whatever happens first.

    `run_inline` is tried first. If that returns no answer, `queue` has a compute thread run the request:

        queue -> _run -> _handle -> _answer                     it ran, or raised
                         _handle -> _resume -> _finish -> _answer    its result came later
        expire, cancel, cut_off, drop -> _give_up -> _answer    it was not waited for

    Args:
        ctx: What the request reads from and writes to.
        operation: What is asked for.
        request: The operation's message.
        observer: Is told what becomes of it.
        number: Of the request; 0 if it has none.
        seconds: How long its caller waits; 0 for as long as it takes.
        depth: How many requests it is nested in.
        item: What the compute threads know of it; made from the trainer and the depth if None.

    Attributes:
        ctx: What it reads from and writes to.
        operation: What is asked for.
        request: The operation's message.
        number: Of the request.
        nbytes: Length of its payload, for as long as that counts.
        waiting_bytes: The same, while it waits for requests of its own.
        begun: Whether a thread has begun with it.
    """

    __slots__ = (
        "__weakref__",
        "_answered",
        "_depth",
        "_due",
        "_frame",
        "_item",
        "_lock",
        "_observer",
        "_scope",
        "_seconds",
        "_timer",
        "begun",
        "ctx",
        "nbytes",
        "number",
        "operation",
        "request",
        "waiting_bytes",
    )

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
        self.nbytes = 0
        self.waiting_bytes = 0
        self.begun = False
        self._observer = observer
        self._seconds = seconds
        self._depth = depth
        self._item = item
        self._scope: Scope | None = None
        self._frame: Frame | None = None
        self._answered = False

    # On the event loop

    def run_inline(self) -> Answer | None:
        """Runs the request now if that takes no time and waits for nothing.

        Returns:
            Its answer, which the observer is not told; None if the request has to be queued.
        """
        rule, ctx = self.operation.inline, self.ctx
        if rule is None or (ctx.payload is not None and len(ctx.payload) > _INLINE_BYTES):
            return None
        try:
            if not rule(ctx, self.request):
                return None
        except Exception:
            pass  # The handler raises it again, which takes no time.
        locks = ctx.engine.parameter_locks
        locks.forbid_blocking()
        try:
            return self._handle()
        except WouldBlock:
            return None
        finally:
            locks.allow_blocking()

    def queue(self) -> None:
        """Has a compute thread run the request; the observer is told the answer."""
        ctx = self.ctx
        ctx.restart()
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        # Weak, because the scope must not keep the execution that has it, and its answer, until the collector comes.
        self._scope = Scope(self._seconds, self._depth, partial(_nests, weakref.ref(self)))
        if self._item is None:
            # A nested request goes first: code that runs elsewhere waits for it.
            self._item = WorkItem(ctx.trainer, self._depth > 0)
        self._item.apart = self.operation.apart
        self._item.what = partial(title, ctx.engine, self.operation.name, self.request)
        if self._seconds:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        ctx.engine.counters.running += 1
        self.submit()

    def submit(self) -> None:
        """Hands a queued request to the compute threads, perhaps again."""
        self.ctx.engine.compute.submit(self._run, self._item)

    def cancel(self) -> None:
        """Its trainer does not want it any more. It is not run if no thread has begun with it."""
        self.give_up(cancelled(self.number))

    def cut_off(self) -> None:
        """Its owner stops, and the caller is told so."""
        self.give_up(cut_off(self.ctx.engine, self.number))

    def drop(self, even_if_begun: bool) -> bool:
        """Its owner stops, and the request will run another time, so that it has no answer now.

        Returns:
            Whether that is so: not if it has begun and that matters.
        """
        with self._lock:
            if self.begun and not even_if_begun:
                return False
            self._answered = True
        self.cut_off()
        return True

    def give_up(self, answer: Answer) -> None:
        """Nothing waits for the result any more: the request has another answer instead."""
        assert self._scope is not None and self._item is not None
        self._scope.cancel()
        self._answer(self._refused(answer))
        # Last of all, because from now on it must not begin.
        self.ctx.engine.compute.abandon(self._item)

    @property
    def is_due(self) -> bool:
        """Whether its result came later, and is there."""
        return self._due and not self._answered

    def nests(self) -> None:
        """The code that runs for it makes a request of its own. May be called in any thread."""
        if self.nbytes:
            self.ctx.engine.compute.tell(partial(self._observer.begin_wait, self))

    def _expire(self) -> None:
        self.give_up(too_late(self.operation, self._seconds, self.number))

    def _answer(self, answer: Answer) -> None:
        if self._answered:
            return
        self._answered = True
        if self._timer is not None:
            self._timer.cancel()
        self.ctx.engine.counters.running -= 1
        self._observer.finished(self, answer)

    # In a compute thread

    def _run(self) -> Work:
        engine, item, observer = self.ctx.engine, self._item, self._observer
        assert item is not None
        with self._lock:
            if self._answered:
                return _nothing
            if self.operation.large and not self._depth and observer.is_full:
                return partial(observer.hold, self)
            self.begun = True
        engine.counters.queued(self.ctx.seconds)
        answer: Answer | None
        if engine.compute.has_lost_enough(item.of) and not item.apart:
            answer = self._refused(overdrawn(engine, self.number))
        else:
            answer = self._handle()
        if answer is None:
            return self._wait()
        observer.made.append(answer.nbytes)
        return partial(self._ran, answer)

    def _ran(self, answer: Answer) -> None:
        self._observer.made.remove(answer.nbytes)
        self._answer(answer)
        self._observer.release(self)

    def _wait(self) -> Work:
        """Lets go of the thread until the result is there."""
        ctx = self.ctx
        assert ctx.deferred is not None
        if not ctx.keeps_payload:
            ctx.let_go()
        ctx.engine.counters.wait(1)
        ctx.deferred.when_done(self._resume)
        return _nothing if ctx.keeps_payload else partial(self._observer.release, self, True)

    def _resume(self) -> None:
        """The result is there. Called in the thread that brings it."""
        assert self._item is not None
        self.ctx.engine.counters.wait(-1)
        self._due = True
        self.ctx.engine.compute.submit(self._finish, WorkItem(self._item.of, urgent=True))

    def _finish(self) -> Work:
        if self._answered:
            return partial(self._observer.release, self)
        answer = self._handle(resumed=True)
        assert answer is not None
        return partial(self._came, answer)

    def _came(self, answer: Answer) -> None:
        self._answer(answer)
        self._observer.release(self)

    # In either

    def _handle(self, resumed: bool = False) -> Answer | None:
        """Runs the handler, or writes the reply that it has deferred.

        Returns:
            The answer, which may be an error; None if the handler has deferred its reply.

        Raises:
            WouldBlock: Blocking is forbidden, and the request would have to wait.
        """
        ctx, operation = self.ctx, self.operation
        token = current_scope.set(self._scope)
        error = 0
        try:
            if resumed:
                frame = self._frame or Frame()
                ctx.complete()
            else:
                frame = Frame(number=self.number)
                reply = getattr(frame.reply, operation.name)
                reply.SetInParent()
                operation.handle(ctx, self.request, reply)
                if ctx.deferred is not None:
                    self._frame = frame
                    return None
            answer = ctx.answer(frame)
        except WouldBlock:
            raise
        except BaseException as raised:
            # Even a SystemExit of hosted code is an answer, and ends nothing here.
            answer = failure(explain(raised, operation), self.number)
            error = answer.reply.error.code
        finally:
            current_scope.reset(token)
        # A request that was given up has been counted then.
        if not ctx.abandoned:
            ctx.engine.counters.count(operation.name, ctx.seconds, error)
        if error:
            ctx.give_back()
        return answer

    def _refused(self, answer: Answer) -> Answer:
        """Counts the request as failed, and takes back what it has granted."""
        self.ctx.engine.counters.count(self.operation.name, self.ctx.seconds, answer.reply.error.code)
        self.ctx.give_back()
        return answer


def _nests(execution: weakref.ref[Execution]) -> None:
    nesting = execution()
    if nesting is not None:
        nesting.nests()


def _nothing() -> None:
    """For requests that have their answer already."""
