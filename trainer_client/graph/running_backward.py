"""One backward while it runs, and the gradients that it sends to owners."""

from __future__ import annotations

import threading
from collections import defaultdict
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from ps_wire.numerics.autocast import is_active
from ps_wire.runtime.failures import Failure
from ps_wire.runtime.latency import Latencies, Latency
from trainer_client.graph.batch import Batch
from trainer_client.numerics import write_numerics
from trainer_client.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch

    from trainer_client.graph.batch import Answer, Follow
    from trainer_client.graph.nodes import Gradient, WayBack
    from trainer_client.session.session import Session


class LocalBackward:
    """A backward that needs no gradient from an owner: it computes all gradients first and sends them afterwards.

    Calls whose backward takes long on the owner have requests of their own, so that they run concurrently there.
    Backwards of a context are numbered from 1. What was sent, and has to be waited for, is in `posts`, in order.
    """

    _kept = False

    def __init__(self, retain_graph: bool, number: int) -> None:
        self.retain_graph = retain_graph
        self.number = number
        self.posts: dict[Pending[Any], None] = {}
        self._found: list[tuple[int, WayBack, Sequence[int], Sequence[Gradient]]] = []
        self._held: list[Batch] = []
        # By owner, the request that further calls join.
        self._shared: dict[Session, Batch] = {}

    def add(self, call: WayBack, positions: Sequence[int], gradients: Sequence[Gradient], kept: bool) -> None:
        """Takes the gradients of a call's outputs; the owner may have others, if it has kept results."""
        if positions or kept:
            self._found.append((call.number, call, positions, gradients))
            self._kept = self._kept or kept

    def must_wait(self, call: WayBack) -> bool:
        """Whether torch's engine has to wait for the answer of a call; sends all gradients in that case."""
        return False

    def finish(self, follow: Follow | None = None) -> None:
        """Sends what is held, after a run of torch's engine, the latest call first. What follows goes along if it fits.

        What follows goes with one request to each owner.
        """
        self._found.sort(key=itemgetter(0), reverse=True)
        last: dict[Session, int] = {}
        for number, call, positions, gradients in self._found:
            self._hold(call, last.get(call.session, 0), positions, gradients)
            last[call.session] = number
        if follow is not None:
            follow.join(self._held)
        if self._kept and len(self._held) > 1 and self._held[0].follow is None:
            # A call runs after those that have used its results, and these may be in an earlier request.
            for session in last:
                done: Pending[None] = Pending(session.loop)
                self.posts[done] = None
                _send_in_turn(iter([batch for batch in self._held if batch.session is session]), done)
        else:
            for batch in self._held:
                self.posts[batch.send()[0]] = None

    def _hold(self, call: WayBack, after: int | None, positions: Sequence[int], gradients: Sequence[Gradient]) -> None:
        """Adds a call to a request; arguments as for `Batch.add`. Not safe from several threads."""
        batch = self._shared.get(call.session) if call.together else None
        if batch is None or not batch.takes(call, gradients):
            batch = Batch(call.session)
            batch.request.retain_graph = self.retain_graph
            batch.request.backward = self.number
            if is_active():
                write_numerics(batch.request)
            self._held.append(batch)
            if call.together:
                self._shared[call.session] = batch
        batch.add(call, after, positions, gradients)


class RunningBackward(LocalBackward):
    """A backward that sends the gradients of the calls that are ready before torch's engine waits for an owner.

    If the local part of such graphs takes long meanwhile (`latency`; None to hold nothing), it sends those of each
    call at once. It may go on from a call: then torch's engine runs once more, from its inputs, when they have come.
    """

    def __init__(
        self,
        retain_graph: bool,
        number: int,
        calls: Iterable[WayBack] = (),
        latency: Latency | None = None,
        goes_on: WayBack | None = None,
    ) -> None:
        super().__init__(retain_graph, number)
        self._latency = latency or Latency()
        self._goes_on = goes_on
        # When the measurement began, if gradients are held, or would be.
        self._began: tuple[float, float] | None = None
        self._lock = threading.RLock()
        # Requests with calls whose answers the engine has not waited for.
        self._unawaited: defaultdict[Session, list[Pending[Answer]]] = defaultdict(list)
        self._after: dict[int, int] = {}
        self._skipped: set[int] = set()
        by_owner: defaultdict[str, list[int]] = defaultdict(list)
        for call in calls:
            by_owner[call.session.owner].append(call.number)
        for numbers in by_owner.values():
            numbers.sort(reverse=True)
            self._after.update(zip(numbers, (0, *numbers), strict=False))

    def add(self, call: WayBack, positions: Sequence[int], gradients: Sequence[Gradient], kept: bool) -> None:
        if not positions and not kept:
            self._skipped.add(call.number)
            return
        with self._lock:
            if self._began is None:
                self._began = self._latency.begin()
            shared = self._shared.get(call.session) if call.together else None
            if shared is not None and not shared.takes(call, gradients):
                self._send_all()  # the request that the call would join is large
        if kept:
            # It runs after the calls that have used its results: in their request, or once that is answered.
            for answer in self._unawaited.pop(call.session, ()):
                answer.wait()
        with self._lock:
            self._hold(call, self.after(call.number), positions, gradients)
            if not self._latency.is_short:
                self._send_all()

    def must_wait(self, call: WayBack) -> bool:
        with self._lock:
            if call.held and not call.waits:
                call.left = True
                return False
            self.finish()
            return True

    def finish(self, follow: Follow | None = None) -> None:
        """Sends what is held. What follows the backward goes along after the last run, if all before was answered."""
        with self._lock:
            if self._began is not None:
                self._latency.end(self._began)
                self._began = None
            last = self._goes_on
            if last is not None and (last.held or last.answer is not None):
                follow = None
            self._send_all(None if self.posts else follow)

    def _send_all(self, follow: Follow | None = None) -> None:
        batches, self._held, self._shared = self._held, [], {}
        if follow is not None:
            follow.join(batches)
        for batch in batches:
            answer, left = batch.send()
            self.posts[answer] = None
            if left:
                self._unawaited[batch.session].append(answer)

    def after(self, number: int) -> int | None:
        """The call whose gradients the owner adds just before; 0 if there is none, None if it is unknown."""
        after = self._after.get(number)
        while after in self._skipped:
            after = self._after[after]
        return after


def _send_in_turn(batches: Iterator[Batch], done: Pending[None], before: Pending[Answer] | None = None) -> None:
    """Sends each request once the one before it is answered. The result is there with the last answer or an error."""
    try:
        if before is not None:
            before.result()
        batch = next(batches, None)
        if batch is None:
            done.resolve(result=None)
        else:
            sent, _ = batch.send()
            sent.on_done(partial(_send_in_turn, batches, done, sent))
    except Exception as error:
        done.resolve(Failure(error))


_latencies: Final[Latencies[tuple[int, tuple[str, ...]]]] = Latencies()
"""How long backwards hold gradients, by the number of leaves and the owners of the calls."""


def holding_latency(leaves: Sequence[torch.Tensor], calls: Iterable[WayBack]) -> Latency:
    """How long backwards hold gradients that reach these leaves and recorded calls."""
    return _latencies.of((len(leaves), tuple([call.session.owner for call in calls])))
