"""Runs the backwards of one context one after the other, on the event loop or in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from ps_wire.errors import ClosedError
from ps_wire.numerics.autocast import NONE, Autocasts
from ps_wire.runtime import forks
from trainer_client.graph.backward_order import Queue
from trainer_client.graph.running_backward import LocalBackward, RunningBackward, first_failure, holding_latency
from trainer_client.graph.short_graphs import local_graph
from trainer_client.graph.walk import borrowed_grads, grads_of, reached_from, reservations
from trainer_client.pending import Pending, raiser, when_all_done

if TYPE_CHECKING:
    from trainer_client.contexts.context import Context
    from trainer_client.contexts.local_gradients import LocalGradients
    from trainer_client.graph.batch import Follow


class Start(NamedTuple):
    """The arguments of a backward, as for `torch.autograd.backward`.

    Attributes:
        roots: The tensors to propagate from.
        gradients: Their gradients.
        retain_graph: Whether to keep the graph for another backward.
        follow: What an owner does after it, in the same request if that can be.
    """

    roots: Sequence[torch.Tensor]
    gradients: torch.Tensor | Sequence[torch.Tensor | None] | None
    retain_graph: bool
    follow: Follow | None = None


class Backwards:
    """Runs the backwards of a context. It does not refer to the context, to avoid a reference cycle.

    Args:
        loop: The client's event loop.
        gradients: Receives the gradients of local leaves.

    Attributes:
        current: The backward that is running.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, gradients: LocalGradients) -> None:
        self.current: RunningBackward | LocalBackward | None = None
        self._loop = loop
        self._gradients = gradients
        self._queue = Queue()

    def begin(self, context: Context, start: Start) -> Pending[None]:
        """Begins a backward: on the event loop if it is short and needs no answer of an owner, otherwise in a thread.

        Torch's engine blocks while it waits for owners, so it must not run on the event loop then.
        """
        if asyncio._get_running_loop() is self._loop and not torch.is_inference_mode_enabled():
            local = local_graph(start.roots, context)
            if local is not None and local[0].is_short and (turn := self._queue.begin()) is not None:
                latency, leaves = local
                if not leaves or reservations.take_now(leaves):
                    return self._run_here(LocalBackward(start.retain_graph, turn, latency), leaves, start)
                self._queue.leave(turn)
        number, autocasts = self._queue.join(), Autocasts.current()
        # It may be cancelled before a thread begins it.
        withdraw = partial(self._queue.withdraw, number)
        return Pending.in_thread(self._loop, self._run_in_turn, context, number, autocasts, start, cancel=withdraw)

    def run(self, context: Context, start: Start) -> None:
        """Runs a backward in this thread, which must not be that of the event loop.

        Raises:
            ClosedError: The client is closed.
        """
        self._run_in_turn(context, self._queue.join(), NONE, start)

    def _run_here(self, current: LocalBackward, leaves: Sequence[torch.Tensor], start: Start) -> Pending[None]:
        """Runs a backward whose turn it is on the event loop. The turn ends when all owners have answered.

        Args:
            current: The backward.
            leaves: Those that it reaches; they are reserved for it.
            start: Where it starts.
        """
        done: Pending[None] = Pending(self._loop)
        found: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
        failure: BaseException | None = None
        try:
            if leaves:
                with reservations.freed(leaves), borrowed_grads(leaves):
                    self._propagate(current, start)
                    found = grads_of(leaves)
            else:
                self._propagate(current, start)
        except BaseException as error:
            failure = error
        when_all_done(iter(current.posts), partial(self._settle, current, done, found, failure))
        return done

    def _settle(
        self,
        current: LocalBackward,
        done: Pending[None],
        found: Sequence[tuple[torch.Tensor, torch.Tensor]],
        failure: BaseException | None,
    ) -> None:
        """All owners have answered a backward that ran on the event loop."""
        failure = failure or first_failure(current.posts)
        if failure is None and found:
            self._gradients.add(found)
        self._queue.leave(current.number)
        done.resolve(_nothing if failure is None else raiser(failure))

    def _run_in_turn(self, context: Context, number: int, autocasts: Autocasts, start: Start) -> None:
        with self._queue.turn(number), autocasts.entered():
            context.check()
            if forks.is_foreign(self._loop):
                raise forks.refusal()
            if self._loop.is_closed():
                raise ClosedError("this client is closed, and so is its event loop")
            leaves: Sequence[torch.Tensor]
            current: RunningBackward | LocalBackward
            local = local_graph(start.roots, context)
            if local is not None:
                latency, leaves = local
                current = LocalBackward(start.retain_graph, number, latency)
            else:
                leaves, calls = reached_from(start.roots)
                own = [call for call in calls if call.context is context]
                current = RunningBackward(start.retain_graph, number, own, holding_latency(leaves, own))
            with reservations.of(leaves), borrowed_grads(leaves):
                try:
                    self._propagate(current, start)
                finally:
                    failure = first_failure(current.posts)
                if failure is not None:
                    raise failure
                self._gradients.add(grads_of(leaves))

    def _propagate(self, current: RunningBackward | LocalBackward, start: Start) -> None:
        """Runs torch's engine."""
        self.current = current
        began = current.latency.begin() if isinstance(current, LocalBackward) else None
        try:
            torch.autograd.backward(start.roots, start.gradients, start.retain_graph)
        finally:
            self.current = None
        if isinstance(current, RunningBackward):
            current.finish(start.follow)
        elif began is not None:
            current.latency.end(began)
            current.post(start.follow)


def _nothing() -> None:
    """The outcome of a backward that has succeeded."""
