"""Runs the backwards of one context one after the other, on the event loop or in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch.autograd.graph import GradientEdge

from ps_wire.errors import CancelledCallError, ClosedError, InvalidArgumentError
from ps_wire.numerics.autocast import NONE, Autocasts
from ps_wire.runtime import forks
from ps_wire.runtime.failures import Failure, Origin, failure_of, told
from ps_wire.runtime.threads import BLOCKING
from ps_wire.shown import shown
from trainer_client.endings import first_failure, wait_here
from trainer_client.graph.engine import propagate, propagate_from
from trainer_client.graph.leaves import LocalGradients, borrowed_grads, grads_of, reservations
from trainer_client.graph.running_backward import LocalBackward, RunningBackward, holding_latency
from trainer_client.graph.short_graphs import Graph, Second, short_graph, whole_graph
from trainer_client.pending import Pending, when_all_done
from trainer_client.session.in_flight import InFlightRequest

if TYPE_CHECKING:
    from ps_wire.runtime.latency import Latency
    from trainer_client.contexts.closing import Closing
    from trainer_client.graph.batch import Answer, Follow
    from trainer_client.graph.recorder import RecordingPass
    from trainer_client.session.session import Session

T = TypeVar("T")


class Start(NamedTuple):
    """The arguments of a backward, as for `torch.autograd.backward`, the steps that follow it, and the changes of
    gradients that it waits for."""

    roots: Sequence[torch.Tensor]
    gradients: torch.Tensor | Sequence[torch.Tensor | None] | None
    retain_graph: bool
    closing: Closing | None = None
    behind: Sequence[Pending[Any]] = ()


def roots_of(roots: Any) -> tuple[torch.Tensor, ...]:
    """The roots of a backward. Raises `InvalidArgumentError` if they are no tensors."""
    given = (roots,) if isinstance(roots, torch.Tensor) or not isinstance(roots, Iterable) else tuple(roots)
    for each in given:
        if not isinstance(each, (torch.Tensor, GradientEdge)):
            raise InvalidArgumentError(f"backward() takes a tensor, usually the loss, or several, not {shown(each)}")
    return given


class Queue:
    """Lets the backwards of a context run one after the other, in the order of their numbers. Safe from threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._last = 0
        # In order. A thread that waits for its turn waits for the lock of its number.
        self._waiting: dict[int, threading.Lock | None] = {}

    def join(self) -> int:
        """Takes the next number: 1, 2, 3 …"""
        with self._lock:
            self._last += 1
            self._waiting[self._last] = None
            return self._last

    def begin(self) -> int | None:
        """Takes the next number if its turn is now, until `leave`; otherwise returns None."""
        with self._lock:
            if self._waiting:
                return None
            self._last += 1
            self._waiting[self._last] = threading.Lock()
            return self._last

    def withdraw(self, number: int) -> None:
        """Removes a number from the queue, unless a thread waits for its turn already."""
        with self._lock:
            if number in self._waiting and self._waiting[number] is None:
                self.leave(number)

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Waits for all lower numbers, until the block ends; `CancelledCallError` if the number was withdrawn."""
        with self._lock:
            if number not in self._waiting:
                raise CancelledCallError("the backward was cancelled before it began")
            mine = self._waiting[number] = threading.Lock()
            mine.acquire()
            if next(iter(self._waiting)) == number:
                mine.release()
        with mine:
            try:
                yield
            finally:
                self.leave(number)

    def leave(self, number: int) -> None:
        """Ends the turn of a number and begins the next one."""
        with self._lock:
            was_first = next(iter(self._waiting)) == number
            del self._waiting[number]
            following = next(iter(self._waiting.values()), None)
            if was_first and following is not None:
                following.release()


class Backwards:
    """Runs the backwards of a context, without a reference to it. The `thread` runs torch's engine for `running`. There
    is a `store` of gradients once one is needed, or was given. `changes` has what changes gradients of earlier
    backwards and had not ended when the latest of it was begun. What has failed, a backward too, stays in it until the
    program knows."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: LocalGradients | None) -> None:
        self.running: LocalBackward | None = None
        self.thread = 0
        self._loop = loop
        self.store = store
        self._queue = Queue()
        self._lock = threading.Lock()
        # The numbers of those that have not ended, without the steps that follow. The results are for who waits.
        self._unfinished: dict[int, Pending[Any] | None] = {}
        # The latest backward on the event loop that has sent all of its requests, and these.
        self._sent: tuple[int | None, Sequence[Pending[Any]]] = (None, ())
        # The latest backward that a request follows, whose failure says that this one is its cause.
        self._followed: int | None = None
        self.changes: Sequence[Pending[Any]] = ()

    @property
    def gradients(self) -> LocalGradients:
        """The gradients of local leaves."""
        with self._lock:
            if self.store is None:
                self.store = LocalGradients()
            return self.store

    @property
    def unfinished(self) -> Sequence[Pending[Any]]:
        """The backwards that were begun with `begin`, and changes of gradients, that have not ended, or have failed and
        the program does not know; none for hooks that a backward runs."""
        if not (self._unfinished or self.changes) or threading.get_ident() == self.thread:
            return ()
        with self._lock:
            for number, waited_for in self._unfinished.items():
                if waited_for is None:
                    self._unfinished[number] = Pending(self._loop)
            return [*(each for each in self._unfinished.values() if each is not None), *self._open_changes()]

    def change(self, change: Pending[T]) -> Pending[T]:
        """What begins later waits for this, which changes gradients. Returns it."""
        with self._lock:
            self.changes = [*self._open_changes(), change]
        return change

    def _open_changes(self) -> Sequence[Pending[Any]]:
        return [each for each in self.changes if not each.settled or _is_unread(each.failure)]

    def sent_to(self, session: Session) -> Sequence[InFlightRequest[Any]]:
        """The requests of the only unfinished backward, if all went to one owner, and gradients are not being changed.
        What follows tells of failures."""
        number, posts = self._sent
        if list(self._unfinished) != [number] or threading.get_ident() == self.thread or self._open_changes():
            return ()
        sent = [each for each in posts if isinstance(each, InFlightRequest) and each.session is session]
        if len(sent) != len(posts):
            return ()
        self._followed = number
        return sent

    def begin(self, context: RecordingPass, start: Start) -> Pending[Any]:
        """Begins a backward, and the steps that follow: on the event loop if it is short, and otherwise in a thread,
        because torch's engine blocks while it waits for owners. If it would wait once, it runs twice on the loop.
        Behind changes of gradients a thread waits for these."""
        if self.changes or (start.closing is not None and self._unfinished):
            start = self._behind_earlier(start)
        graph, turn, closing = None, None, start.closing
        if not start.behind and asyncio._get_running_loop() is self._loop and not torch.is_inference_mode_enabled():
            graph = short_graph(start.roots, context)
            if graph is not None and graph.is_short:
                turn = self._queue.begin()
                if turn is not None and graph.leaves and not self.gradients.take_now(graph.leaves):
                    self._queue.leave(turn)
                    turn = None
        if turn is None and forks.is_foreign(self._loop):
            raise forks.refusal()
        number = self._queue.join() if turn is None else turn
        done: Pending[Any] = Pending(self._loop, partial(self._cancelled, number, closing))
        done.origin = Origin("a pass", "backward" if closing is None else "backward with a step", context.failures)
        self._unfinished[number] = done if closing is None else None
        variables = copy_context()
        ended = partial(self._ended, number, done, closing, variables)
        if graph is not None and turn is not None:
            self._run_here(turn, graph, start, ended)
        else:
            run = partial(self._run_in_thread, context, number, Autocasts.current(), start, done, ended)
            BLOCKING.start(partial(variables.copy().run, run))
        return done

    def _ended(
        self,
        number: int,
        done: Pending[Any],
        closing: Closing | None,
        variables: Variables,
        outcome: Failure | None = None,
    ) -> None:
        """A backward has ended, with a failure or not: goes on with the steps that follow, or says so."""
        if outcome is not None and not done.settled:  # or it was cancelled
            failed: Pending[Any] = Pending(self._loop)  # not `done`, which refers to this object
            failed.resolve(outcome)
            self.change(failed)
        with self._lock:
            waited_for = self._unfinished.pop(number, None)
        if outcome is not None:
            done.resolve(outcome)
        elif closing is not None:
            closing.go_on(self._loop, done, variables)
        else:
            done.resolve(result=None)
        if waited_for is not None:
            waited_for.resolve(outcome, result=None)

    def _cancelled(self, number: int, closing: Closing | None) -> None:
        """Nobody waits for a backward any more, and the steps that follow. If it has begun, it goes on all the same."""
        if closing is not None:
            closing.cancel()
        with self._lock:
            waited_for = self._unfinished.pop(number, None)
        self._queue.withdraw(number)
        if waited_for is not None:
            waited_for.cancel()

    def run(self, context: RecordingPass, start: Start) -> None:
        """Runs a backward in this thread, which must not be that of the event loop."""
        if self.changes or (start.closing is not None and self._unfinished):
            start = self._behind_earlier(start)
        with told():
            self._run_in_turn(context, self._queue.join(), NONE, start)

    def _behind_earlier(self, start: Start) -> Start:
        """The backward waits for changes of gradients, and one with a step also for backwards, so that it tells of
        their failures. To be called before it joins the queue: nothing that it waits for waits for it then."""
        return start._replace(behind=self._open_changes() if start.closing is None else self.unfinished)

    def _run_here(self, turn: int, graph: Graph, start: Start, ended: Callable[..., None]) -> None:
        """Runs a backward on the event loop. The turn ends with the owners' answers; the leaves are reserved."""
        current = LocalBackward(start.retain_graph, turn) if graph.second is None else _waiting(graph, start, turn)
        found: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()

        def settle(error: BaseException | None = None) -> None:
            """All owners have answered."""
            if self._sent[0] == turn:
                self._sent = (None, ())  # the answers hold gradients
            failure = first_failure(current.posts) if error is None else Failure(error)
            if failure is None and found:
                self.gradients.add(found)
            elif failure is not None and turn != self._followed:
                failure = Failure(failure.error)  # that of a request may be that of others, too
            self._queue.leave(turn)
            ended(failure)

        def go_on(second: Second, answer: tuple[Pending[Answer], int], autocasts: Autocasts) -> None:
            """The owner has answered the call that the backward waits for."""
            try:
                with torch.inference_mode(False), autocasts.entered():
                    self._propagate_further(current, second, start, answer)
            except BaseException as error:
                when_all_done(iter(current.posts), partial(settle, error))
            else:
                self._sent = turn, list(current.posts)
                when_all_done(iter(current.posts), settle)

        try:
            engine = partial(propagate, start.roots, start.gradients, start.retain_graph, graph.ends)
            run = partial(self._propagate, current, graph.latency, start.closing, engine)
            if graph.leaves:
                with reservations.freed(graph.leaves), borrowed_grads(graph.leaves):
                    run()
                    found = grads_of(graph.leaves)
            else:
                run()
        except BaseException as error:
            when_all_done(iter(current.posts), partial(settle, error))
        else:
            if graph.second is not None and (answer := _answer_to(graph.second)) is not None:
                further = partial(go_on, graph.second, answer, Autocasts.current())
                answer[0].on_done(partial(copy_context().run, further))
            else:
                self._sent = turn, list(current.posts)
                when_all_done(iter(current.posts), settle)

    def _run_in_thread(
        self,
        context: RecordingPass,
        number: int,
        autocasts: Autocasts,
        start: Start,
        done: Pending[Any],
        ended: Callable[..., None],
    ) -> None:
        if done.settled:
            return  # it was cancelled before it could begin
        try:
            self._run_in_turn(context, number, autocasts, start)
        except BaseException as error:
            # Without this frame, so that no cycle delays the report of an unread error.
            ended(failure_of(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)))
        else:
            ended()

    def _run_in_turn(self, context: RecordingPass, number: int, autocasts: Autocasts, start: Start) -> None:
        try:
            wait_here(self._loop, start.behind)
        except BaseException:
            self._queue.withdraw(number)
            raise
        with self._queue.turn(number), autocasts.entered():
            context.check()
            if forks.is_foreign(self._loop):
                raise forks.refusal()
            if self._loop.is_closed():
                raise ClosedError("this client is closed, and so is its event loop")
            graph = short_graph(start.roots, context)
            is_local = graph is not None and graph.second is None
            graph = graph or whole_graph(start.roots, context)
            current = LocalBackward(start.retain_graph, number) if is_local else _waiting(graph, start, number)
            with self.gradients.reserved(graph.leaves), borrowed_grads(graph.leaves):
                try:
                    engine = partial(propagate, start.roots, start.gradients, start.retain_graph, graph.ends)
                    self._propagate(current, graph.latency, start.closing, engine)
                    if graph.second is not None and (answer := _answer_to(graph.second)) is not None:
                        answer[0].wait()
                        self._propagate_further(current, graph.second, start, answer)
                finally:
                    failure = first_failure(current.posts)
                if failure is not None:
                    raise failure.error
                self.gradients.add(grads_of(graph.leaves))

    def _propagate(
        self, current: LocalBackward, latency: Latency | None, follow: Follow | None, engine: Callable[[], None]
    ) -> None:
        """Runs torch's engine in this thread, notes how long graphs of the kind take, and sends the gradients."""
        self.running, self.thread = current, threading.get_ident()
        began = None if latency is None else latency.begin()
        try:
            engine()
        finally:
            self.running, self.thread = None, 0
        if latency is not None and began is not None:
            latency.end(began)
        current.finish(follow)

    def _propagate_further(
        self, current: LocalBackward, second: Second, start: Start, answer: tuple[Pending[Answer], int]
    ) -> None:
        """Runs torch's engine from the inputs of the call that was answered, or raises the owner's error."""
        post, index = answer
        gradients = post.result().gradients
        # The end of the backward need not wait for it again.
        current.posts.pop(post, None)
        edges, found = [], []
        for edge, gradient, device in zip(second.edges, gradients[index], second.call.devices, strict=True):
            if gradient is not None:
                edges.append(edge)
                found.append(gradient.to(device))
        if edges:
            engine = partial(propagate_from, edges, found, start.retain_graph)
            self._propagate(current, second.latency, start.closing, engine)
        else:
            current.finish(start.closing)


def _waiting(graph: Graph, start: Start, number: int) -> RunningBackward:
    """The state of a backward that may wait for owners."""
    latency = holding_latency(graph.leaves, graph.calls)
    goes_on = None if graph.second is None else graph.second.call
    return RunningBackward(start.retain_graph, number, graph.calls, latency, goes_on)


def _is_unread(failure: Failure | None) -> bool:
    return failure is not None and not failure.is_read


def _answer_to(second: Second) -> tuple[Pending[Answer], int] | None:
    """The answer that a backward waits for; None if the call has got no gradient."""
    answer, second.call.answer = second.call.answer, None
    return answer
