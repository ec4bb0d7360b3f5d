"""Runs the backwards of one context one after the other, on the event loop or in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from ps_wire.errors import ClosedError
from ps_wire.numerics.autocast import NONE, Autocasts
from ps_wire.runtime import forks
from ps_wire.runtime.failures import Origin
from ps_wire.runtime.nothing import nothing
from trainer_client.graph.backward_order import Queue
from trainer_client.graph.engine import propagate, propagate_from
from trainer_client.graph.running_backward import LocalBackward, RunningBackward, first_failure, holding_latency
from trainer_client.graph.short_graphs import Graph, short_graph
from trainer_client.graph.walk import borrowed_grads, grads_of, reached_from, reservations
from trainer_client.graph.way_back import Pass
from trainer_client.pending import Pending, raiser, when_all_done
from trainer_client.session.in_flight import InFlightRequest

if TYPE_CHECKING:
    from ps_wire.runtime.failures import PassFailures
    from ps_wire.runtime.latency import Latency
    from trainer_client.contexts.gradients import LocalGradients
    from trainer_client.graph.batch import Answer, Follow
    from trainer_client.graph.short_graphs import Second
    from trainer_client.session.session import Session


class FailingPass(Pass, Protocol):
    """A pass whose backwards may fail; see `Context`."""

    failures: PassFailures

    def check(self) -> None:
        """Checks that the pass is open."""


class Start(NamedTuple):
    """The arguments of a backward, as for `torch.autograd.backward`, and what owners do after it."""

    roots: Sequence[torch.Tensor]
    gradients: torch.Tensor | Sequence[torch.Tensor | None] | None
    retain_graph: bool
    follow: Follow | None = None


class Backwards:
    """Runs the backwards of a context, without a reference to it, which would be a cycle.

    Torch's engine runs for `running`, in the thread with the number `thread`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, gradients: LocalGradients) -> None:
        self.running: RunningBackward | LocalBackward | None = None
        self.thread = 0
        self._loop = loop
        self._gradients = gradients
        self._queue = Queue()
        self._begun: list[Pending[None]] = []
        # The latest backward on the event loop that has sent all of its requests, and these.
        self._sent: tuple[Pending[None] | None, Sequence[Pending[Any]]] = (None, ())

    @property
    def unfinished(self) -> Sequence[Pending[None]]:
        """The backwards that were begun with `begin` and have not ended; none for hooks that one of them runs."""
        if not self._begun or threading.get_ident() == self.thread:
            return ()
        self._begun = [each for each in self._begun if not each.settled]
        return self._begun

    def sent_to(self, session: Session) -> Sequence[InFlightRequest[Any]]:
        """The requests of the unfinished backward, if there is one, and all that it needs was sent to one owner.

        Nothing if the backward has more to do here first.
        """
        backward, posts = self._sent
        if [backward] != list(self.unfinished):
            return ()
        sent = [each for each in posts if isinstance(each, InFlightRequest) and each.session is session]
        return sent if len(sent) == len(posts) else ()

    def begin(self, context: FailingPass, start: Start) -> Pending[None]:
        """Begins a backward: on the event loop if it is short, otherwise in a thread.

        Torch's engine blocks while it waits for owners, so it must not run on the event loop then. If it would wait
        once, it runs twice there.
        """
        graph = turn = None
        if asyncio._get_running_loop() is self._loop and not torch.is_inference_mode_enabled():
            graph = short_graph(start.roots, context)
            if graph is not None and graph.is_short:
                turn = self._queue.begin()
                if turn is not None and graph.leaves and not self._gradients.take_now(graph.leaves):
                    self._queue.leave(turn)
                    turn = None
        if graph is not None and turn is not None:
            begun = self._run_here(turn, graph, start)
        else:
            number, autocasts = self._queue.join(), Autocasts.current()
            # It may be cancelled before a thread begins it.
            withdraw = partial(self._queue.withdraw, number)
            begun = Pending.in_thread(self._loop, self._run_in_turn, context, number, autocasts, start, cancel=withdraw)
        begun.origin = Origin("a pass", "backward", context.failures)
        if not begun.settled:
            self._begun = [*self.unfinished, begun] if self._begun else [begun]
        return begun

    def run(self, context: FailingPass, start: Start) -> None:
        """Runs a backward in this thread, which must not be that of the event loop.

        Raises also if the client is closed.
        """
        self._run_in_turn(context, self._queue.join(), NONE, start)

    def _run_here(self, turn: int, graph: Graph, start: Start) -> Pending[None]:
        """Runs a backward whose turn it is on the event loop. The turn ends when all owners have answered.

        The leaves of the graph are reserved for it.
        """
        done: Pending[None] = Pending(self._loop)
        current: RunningBackward | LocalBackward
        current = LocalBackward(start.retain_graph, turn) if graph.second is None else _waiting(graph, start, turn)
        found: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()

        def settle(failure: BaseException | None = None) -> None:
            """All owners have answered."""
            if self._sent[0] is done:
                self._sent = (None, ())  # the answers hold gradients
            failure = failure or first_failure(current.posts)
            if failure is None and found:
                self._gradients.add(found)
            self._queue.leave(turn)
            done.resolve(nothing if failure is None else raiser(failure))

        def sent() -> None:
            """All requests are sent."""
            self._sent = done, list(current.posts)
            when_all_done(iter(current.posts), settle)

        def go_on(second: Second, answer: tuple[Pending[Answer], int], autocasts: Autocasts) -> None:
            """The owner has answered the call that the backward waits for."""
            try:
                with torch.inference_mode(False), autocasts.entered():
                    self._propagate_further(current, second, start, answer)
            except BaseException as error:
                when_all_done(iter(current.posts), partial(settle, error))
            else:
                sent()

        try:
            engine = partial(propagate, start.roots, start.gradients, start.retain_graph, graph.ends)
            run = partial(self._propagate, current, graph.latency, start.follow, engine)
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
                sent()
        return done

    def _run_in_turn(self, context: FailingPass, number: int, autocasts: Autocasts, start: Start) -> None:
        with self._queue.turn(number), autocasts.entered():
            context.check()
            if forks.is_foreign(self._loop):
                raise forks.refusal()
            if self._loop.is_closed():
                raise ClosedError("this client is closed, and so is its event loop")
            graph = short_graph(start.roots, context)
            current: RunningBackward | LocalBackward
            if graph is None:
                leaves, calls = reached_from(start.roots)
                graph = Graph(None, False, leaves, [call for call in calls if call.context is context])
                current = _waiting(graph, start, number)
            elif graph.second is None:
                current = LocalBackward(start.retain_graph, number)
            else:
                current = _waiting(graph, start, number)
            with self._gradients.reserved(graph.leaves), borrowed_grads(graph.leaves):
                try:
                    engine = partial(propagate, start.roots, start.gradients, start.retain_graph, graph.ends)
                    self._propagate(current, graph.latency, start.follow, engine)
                    if graph.second is not None and (answer := _answer_to(graph.second)) is not None:
                        answer[0].wait()
                        self._propagate_further(current, graph.second, start, answer)
                finally:
                    failure = first_failure(current.posts)
                if failure is not None:
                    raise failure
                self._gradients.add(grads_of(graph.leaves))

    def _propagate(
        self,
        current: RunningBackward | LocalBackward,
        latency: Latency | None,
        follow: Follow | None,
        engine: Callable[[], None],
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
        self,
        current: RunningBackward | LocalBackward,
        second: Second,
        start: Start,
        answer: tuple[Pending[Answer], int],
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
            self._propagate(current, second.latency, start.follow, engine)
        else:
            current.finish(start.follow)


def _waiting(graph: Graph, start: Start, number: int) -> RunningBackward:
    """The state of a backward that may wait for owners."""
    latency = holding_latency(graph.leaves, graph.calls)
    goes_on = None if graph.second is None else graph.second.call
    return RunningBackward(start.retain_graph, number, graph.calls, latency, goes_on)


def _answer_to(second: Second) -> tuple[Pending[Answer], int] | None:
    """The answer that a backward waits for; None if the call has got no gradient."""
    answer, second.call.answer = second.call.answer, None
    return answer
