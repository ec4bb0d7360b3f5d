"""How long requests of a session wait: their deadlines, and what the log says of steps that wait for other trainers."""

from __future__ import annotations

import logging
import math
import time
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ps_wire.errors import PsError
from ps_wire.status import OwnerStatus
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import StatusRequest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from trainer_client.pending import Pending
    from trainer_client.session.in_flight import InFlightRequest

_log = logging.getLogger(__name__)

_SECONDS: Final = 1.0
"""Seconds between two looks at the requests in flight. Steps are logged that were there twice: after 1 to 2 s."""

_MOST_OPTIMIZERS: Final = 1000
"""How many optimizers of an owner are asked about."""


_EARLY_SECONDS: Final = 0.001
"""The most that a timer of an event loop may fire too early, in seconds."""


class Waits:
    """Logs once for each step that takes long which optimizers wait for trainers.

    While idle, `begin` has to be called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, requests: Callable[[], Iterable[InFlightRequest[Any]]]) -> None:
        self.idle = True
        self._loop = loop
        self._requests = requests
        self._timer: asyncio.TimerHandle | None = None
        # How many looks have found a request, by number.
        self._looks: dict[int, int] = {}
        self._told: set[int] = set()

    def begin(self) -> None:
        """Looks at the requests from now on, until there are none."""
        self.idle = False
        # A timer that refers to the requests would keep a client that is not closed.
        self._timer = self._loop.call_later(_SECONDS, partial(_look_again, weakref.ref(self)))

    def stop(self) -> None:
        """Looks no more, until `begin` is called."""
        self.idle = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Asks the owner about steps that take long, and goes on if there are requests."""
        in_flight = [each for each in self._requests() if not each.settled]
        # One that waits for space in the window has no number yet, and the owner does not know it.
        looks = {each.number: each for each in in_flight if each.number and _steps(each)}
        self._looks = {number: self._looks.get(number, 0) + 1 for number in looks}
        self._told &= looks.keys()
        # A step that waits for no trainer is slow: asked about at the second look, the fourth, the eighth and so on.
        due = [n for n, count in self._looks.items() if count > 1 and count & (count - 1) == 0 and n not in self._told]
        if due:
            _ask(looks[due[0]], partial(self._tell, due))
        if in_flight:
            self.begin()
        else:
            self.idle = True

    def _tell(self, numbers: list[int], status: OwnerStatus) -> None:
        waiting = [each for each in status.optimizers if each.waiting_for]
        still = [number for number in numbers if number in self._looks and number not in self._told]
        if not waiting or not still:
            return
        self._told.update(still)
        for each in waiting:
            _log.warning(
                "a step on owner %r has waited for more than %g s: the optimizer %r with the policy %s waits for %s",
                *(status.owner, _SECONDS, each.name or each.class_name, each.policy, ", ".join(each.waiting_for)),
            )


def _steps(request: InFlightRequest[Any]) -> bool:
    """Whether a request steps, so that it may wait for other trainers."""
    if request.operation == "backward":
        return len(request.frame.request.backward.steps) > 0
    return request.operation in ("step", "push")


def _look_again(waits: weakref.ref[Waits]) -> None:
    found = waits()
    if found is not None:
        found.look()


def _ask(about: InFlightRequest[Any], tell: Callable[[OwnerStatus], None]) -> None:
    """Asks the owner of a request for its status, and hands it on; not if it does not answer."""
    asked = StatusRequest(most=_MOST_OPTIMIZERS, without_objects=True)
    answer: Pending[OwnerStatus] = about.session.submit(
        Request(status=asked), None, lambda reply, _: OwnerStatus.from_message(reply.status)
    )

    def answered() -> None:
        with suppress(PsError):  # the step fails, too, or is sent again
            tell(answer.result())

    answer.on_done(answered)


class Deadlines:
    """Ends requests at their deadlines. The timer fires at `next`, a time of the monotonic clock, or never."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Callable[[], Iterable[InFlightRequest[Any]]],
        expire: Callable[[InFlightRequest[Any]], None],
    ) -> None:
        self._loop = loop
        self._requests = requests
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None
        self.next = math.inf

    def set(self, deadline: float) -> None:
        """Sets the timer to a deadline that is earlier than `next`."""
        self.stop()
        self.next = deadline
        self._timer = self._loop.call_later(max(deadline - time.monotonic(), 0.0), self._ring)

    def stop(self) -> None:
        """Cancels the timer, which would keep the session alive until it fires."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.next = math.inf

    def _ring(self) -> None:
        self.stop()
        now = time.monotonic() + _EARLY_SECONDS
        waiting = sorted((each for each in self._requests() if not each.settled), key=lambda each: each.deadline)
        for each in waiting:
            if each.deadline > now:
                if each.deadline < self.next:
                    self.set(each.deadline)
                return
            self._expire(each)
