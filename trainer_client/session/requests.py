"""Sends the requests of one session, and resolves them with their answers."""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from ps_wire import errors
from ps_wire.errors import RAN_OUT, CancelledCallError, DeadlineExceededError, InternalError, PsError
from ps_wire.limits import MAX_FRAME_BYTES, MIB
from ps_wire.operations import OPERATIONS
from ps_wire.runtime.failures import Failure, expect
from ps_wire.v1.frames_pb2 import Cancel, Confirm, Frame
from trainer_client.session.waits import Deadlines, Waits
from trainer_client.session.window import RequestWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ps_wire.codec.payload import Buffer
    from ps_wire.connections.outbox import Outbox
    from ps_wire.v1.errors_pb2 import Error
    from ps_wire.v1.frames_pb2 import Reply, Welcome
    from trainer_client.session.in_flight import InFlightRequest

_CONFIRM_SECONDS: Final = 0.1
"""Delay after which answers are confirmed, if no request has confirmed them before."""

_MOST_UNCONFIRMED_BYTES: Final = 16 * MIB
"""Payload bytes above which answers are confirmed at once, because the owner keeps the payloads meanwhile."""


class Requests:
    """Sends requests, numbers them, and resolves each with its answer. Used on the session's event loop.

    It keeps the numbers of requests that were `given_up` here, and that the owner still answers; and of those that
    the owner, which drains, has not taken up (`turned_away`). There is an outbox while a stream is open. What answers
    tell is in the owner's log before the `position`; it is 0 if there is none. `give_back` gets references that no
    caller takes, and `when_held_up` is called when a request may be held up now, or no more. `when_wanted` is called
    once if the session was given up, and a request wants an answer nevertheless; None if that stays so. `redirect`
    gets a request whose object has moved, and returns whether it sends it again. Those that it has put `aside` until
    then, each with the first one of its chain, end at their deadlines, too.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, give_back: Callable[[str], None], when_held_up: Callable[[], None]
    ) -> None:
        self.window = RequestWindow()
        self.given_up: set[int] = set()
        self.turned_away: set[int] = set()
        self.outbox: Outbox | None = None
        self.owner = ""
        self.position = 0
        self.closed: PsError | None = None
        self.when_wanted: Callable[[], None] | None = None
        self.aside: dict[InFlightRequest[Any], InFlightRequest[Any]] = {}
        self.redirect: Callable[[InFlightRequest[Any], Error], bool] = lambda *_: False
        self._give_back = give_back
        self._when_held_up = when_held_up
        self._deadlines = Deadlines(loop, lambda: [*self.window.requests(), *self.aside], self._expire)
        self._waits = Waits(loop, self.window.requests)
        self._loop = loop
        # The numbers of answers that are not confirmed yet, and the bytes of their payloads.
        self._answered: list[int] = []
        self._answered_bytes = 0
        self._confirming: asyncio.TimerHandle | None = None
        self._collected: list[InFlightRequest[Any]] = []
        # Whether `_end_turn` will run, and whether requests of this turn were hurried.
        self._in_turn = False
        self._hurried = False
        # The context variables of the present task do not apply.
        self._no_variables = contextvars.Context()
        self._sent: deque[InFlightRequest[Any]] = deque()

    def collect(self, in_flight: InFlightRequest[Any]) -> None:
        """Sends a request at the end of this turn of the event loop, or before the next one, together with others."""
        if self.closed is not None and self._stays_closed(in_flight):
            in_flight.fail(Failure(self.closed))
            return
        if in_flight.follows:
            self._follow(in_flight)
        in_flight.hurry = self.hurry
        self._collected.append(in_flight)
        if not self._in_turn:
            self._in_turn = True
            self._loop.call_soon(self._end_turn, context=self._no_variables)

    def hurry(self) -> None:
        """Sends collected requests, as a task waits for one; once in a turn, so that others go together."""
        if not self._hurried:
            self._hurried = True
            if len(self._collected) == 1:
                in_flight = self._collected.pop()
                in_flight.hurry = None
                self._begin(in_flight, True)
            else:
                self.flush()

    def flush(self) -> None:
        """Sends the collected requests, in order."""
        if self._collected:
            collected, self._collected = self._collected, []
            with self.outbox.together() if self.outbox is not None else nullcontext():
                for in_flight in collected:
                    in_flight.hurry = None
                    self._begin(in_flight)

    def _end_turn(self) -> None:
        self._in_turn = self._hurried = False
        if self._collected:
            self.flush()

    def begin(self, in_flight: InFlightRequest[Any]) -> None:
        """Sends a request after those that were collected, or keeps it until the window has room for it."""
        if self._collected:
            self.flush()
        if in_flight.follows:
            self._follow(in_flight)
        self._begin(in_flight)

    def _begin(self, in_flight: InFlightRequest[Any], at_once: bool = False) -> None:
        if in_flight.settled:
            return  # it was cancelled, or a request that it follows has failed, before it was sent
        if self.closed is not None and self._stays_closed(in_flight):
            self._fail(in_flight, Failure(self.closed))
            return
        frame, window = in_flight.frame, self.window
        size = frame.ByteSize()
        if in_flight.nbytes > window.max_message_bytes or size > MAX_FRAME_BYTES:
            self._fail(in_flight, Failure(window.refusal(in_flight, size, self.owner)))
            return
        if in_flight.timeout is not None:
            left = in_flight.timeout
            if in_flight.deadline == math.inf:
                in_flight.deadline = time.monotonic() + left
            elif (left := in_flight.deadline - time.monotonic()) <= 0.0:
                self._expire(in_flight)
                return
            frame.request.timeout_seconds = left
            if in_flight.deadline < self._deadlines.next:
                self._deadlines.set(in_flight.deadline)
        if self._waits.idle:
            self._waits.begin()
        if in_flight.follows and not self._may_go(in_flight):
            return
        if window.admit(in_flight):
            self._send(in_flight, at_once)
        if self.outbox is None:
            self._when_held_up()

    def give_up(self, in_flight: InFlightRequest[Any]) -> None:
        """Gives a request up, and cancels it on the owner."""
        in_flight.let_go()
        self.forget(in_flight)
        self._spread(in_flight)

    def finish(self, number: int, reply: Reply, payload: Buffer | None, held: Sequence[object] = ()) -> None:
        """Resolves a request with its answer; objects that are `held` live as long as the result is not read."""
        if reply.position > self.position:
            self.position = reply.position
        nbytes = 0 if payload is None else len(payload)
        self._answered_bytes = nbytes if not self._answered else self._answered_bytes + nbytes
        self._answered.append(number)
        if self._answered_bytes >= _MOST_UNCONFIRMED_BYTES:
            self._confirm()
        elif self._confirming is None:
            self._confirming = self._loop.call_later(_CONFIRM_SECONDS, self._confirm_late)
        window = self.window
        in_flight = window.unanswered.pop(number, None)
        if reply.granted and (number in self.given_up if in_flight is None else reply.HasField("error")):
            # No caller takes its references. An answer that arrives twice is not in `given_up`.
            for object_id in reply.granted:
                self._give_back(object_id)
        if in_flight is None:
            self.given_up.discard(number)
            return
        if in_flight.counted:
            window.discount(in_flight)
        if reply.HasField("error"):
            if reply.error.HasField("moved") and self.redirect(in_flight, reply.error):
                self._send_waiting()
                return
            self._fail(in_flight, Failure(errors.from_message(reply.error)))
        else:
            if in_flight.follows or in_flight.followers:
                in_flight.part()
            if in_flight.staying is None:
                in_flight.answer(reply, payload, held)
            else:
                in_flight.stayed(reply)
        if window.waiting or window.large:
            self._send_waiting()

    def are_waiting(self, numbers: Iterable[int]) -> None:
        """These requests wait for other requests on the owner, so they no longer count towards the window's bytes."""
        for number in numbers:
            in_flight = self.window.unanswered.get(number)
            if in_flight is not None:
                self.window.discount(in_flight)
        self._send_waiting()

    def refused(self) -> list[InFlightRequest[Any]]:
        """The requests that the owner, which drains, has not taken up."""
        unanswered = self.window.unanswered
        return [unanswered[number] for number in self.turned_away if number in unanswered]

    def connected(self, welcome: Welcome, outbox: Outbox) -> None:
        """A stream is open: sends the unanswered requests again."""
        self.owner = welcome.owner
        self.outbox = outbox
        self.window.set_limits(welcome)
        # First of all, because they count as in flight on the owner until they are cancelled there.
        for number in self.given_up:
            outbox.put(Frame(number=number, cancel=Cancel()))
        for each in list(self.window.unanswered.values()):
            failed = next((earlier for earlier in each.follows if earlier.ended_in is not None), None)
            if failed is not None:
                self.forget(each)
                self._fail(each, _consequence(failed, each))
        for each in self.window.unanswered.values():
            _follow_unanswered(each)
            outbox.put(each.frame, each.chunks, each.nbytes, each.later)

    def lost(self, error: PsError) -> None:
        """The owner has ended the session: resolves all requests with the error."""
        self._fail_all(error)
        self.position = 0
        self._answered.clear()
        self.given_up.clear()

    def end(self, error: PsError, fails: bool = False) -> None:
        """Resolves all requests with the error, also later ones; not reported if the program fails anyway."""
        self.closed = error
        if self._confirming is not None:
            self._confirming.cancel()  # it would keep the session alive until it fires
            self._confirming = None
        self._deadlines.stop()
        self._waits.stop()
        # If the session goes on after all, the references in their answers are given back.
        self.given_up.update(self.window.unanswered)
        self._fail_all(error, fails)

    def reopen(self) -> bool:
        """Lets requests be sent again, if the session was given up and may go on; returns whether it may."""
        if self.when_wanted is None:
            return False
        begin, self.when_wanted, self.closed = self.when_wanted, None, None
        begin()
        return True

    def _stays_closed(self, in_flight: InFlightRequest[Any]) -> bool:
        return not (OPERATIONS[in_flight.operation].awaited and self.reopen())

    def _send(self, in_flight: InFlightRequest[Any], at_once: bool = False) -> None:
        """Sends a request that has its number."""
        frame = in_flight.frame
        if self._answered:
            frame.request.confirmed.extend(self._answered)
            self._answered.clear()
        if self.outbox is not None:
            self.outbox.put(frame, in_flight.chunks, in_flight.nbytes, in_flight.later, None, at_once)
        if in_flight.followers and self.window.blocked:
            self._unblock(in_flight)

    def _send_waiting(self) -> None:
        for in_flight in self.window.due():
            _follow_unanswered(in_flight)
            self._send(in_flight)

    def _expire(self, in_flight: InFlightRequest[Any]) -> None:
        self.forget(in_flight)
        where = f"owner {self.owner!r}" + ("" if self.outbox is not None else ", to which there is no connection,")
        text = f"{RAN_OUT}: {in_flight.operation}: no answer from {where} within {in_flight.timeout:g} s"
        self._fail(in_flight, Failure(DeadlineExceededError(text)))

    def forget(self, in_flight: InFlightRequest[Any]) -> None:
        """Takes a request out of the window, and cancels it on the owner if it was sent."""
        if self.window.unanswered.pop(in_flight.number, None) is not None:
            self.window.discount(in_flight)
            # The owner still answers, and lists the references that it has granted.
            self.given_up.add(in_flight.number)
            if self.outbox is not None:
                self.outbox.put(Frame(number=in_flight.number, cancel=Cancel()))
        elif in_flight in self.window.blocked:
            self.window.blocked.remove(in_flight)
        if self.outbox is None or in_flight.number in self.turned_away:
            self._when_held_up()
        self._send_waiting()

    def fail(self, in_flight: InFlightRequest[Any], error: PsError) -> None:
        """Fails a request that was forgotten here, and those that follow it."""
        self._fail(in_flight, Failure(error))

    def _fail_all(self, error: PsError, silent: bool = False) -> None:
        if silent:
            expect(error)
        failure = Failure(error)  # one for all, so that it is reported once
        for in_flight in self.window.clear():
            in_flight.part()
            in_flight.fail(failure)

    def _fail(self, in_flight: InFlightRequest[Any], failure: Failure) -> None:
        in_flight.fail(failure)
        self._spread(in_flight)

    # Requests that follow others

    def _follow(self, in_flight: InFlightRequest[Any]) -> None:
        for earlier in in_flight.follows:
            if not (earlier.answered or earlier.settled or in_flight in earlier.followers):
                earlier.followers = [*earlier.followers, in_flight]

    def _may_go(self, in_flight: InFlightRequest[Any]) -> bool:
        """Names the unanswered requests that a request follows; returns whether it may be sent now."""
        numbers = []
        for earlier in in_flight.follows:
            if earlier.answered:
                continue
            if earlier.settled:
                self._fail(in_flight, _consequence(earlier, in_flight))
                return False
            if not earlier.number or earlier.session is not in_flight.session:
                # It is not sent yet, or only to the owner that its object has left: its number is one of there.
                self.window.blocked.append(in_flight)
                return False
            numbers.append(earlier.number)
        in_flight.frame.request.after.extend(numbers)
        return True

    def _unblock(self, in_flight: InFlightRequest[Any]) -> None:
        """Sends the requests that waited for a request to be sent. Does not recurse, because a chain may be long."""
        self._sent.append(in_flight)
        if len(self._sent) > 1:
            return
        while self._sent:
            for follower in self._sent[0].followers:
                if follower in self.window.blocked:
                    self.window.blocked.remove(follower)
                    if not follower.settled:
                        self._begin(follower)
            self._sent.popleft()

    def _spread(self, ended: InFlightRequest[Any]) -> None:
        """Fails the requests that follow a failed one. If one was given up, cancels those that only it needed."""
        causes = {id(ended): ended}
        left = deque([ended])
        while left:
            each = left.popleft()
            cause = causes.pop(id(each))
            follows, followers = each.part()
            for follower in followers:
                if not follower.settled:
                    self.forget(follower)
                    follower.fail(_consequence(cause, follower))
                    causes[id(follower)] = cause
                    left.append(follower)
            if isinstance(each.ended_in, (CancelledCallError, DeadlineExceededError)):
                for earlier in follows:
                    if earlier.is_idle:
                        self.forget(earlier)
                        earlier.fail(Failure(CancelledCallError("the calls that needed its result were given up")))
                        causes[id(earlier)] = earlier
                        left.append(earlier)

    def _confirm_late(self) -> None:
        self._confirming = None
        self._confirm()

    def _confirm(self) -> None:
        if self._answered and self.outbox is not None:
            self.outbox.put(Frame(confirm=Confirm(numbers=self._answered)))
            self._answered.clear()


def _follow_unanswered(in_flight: InFlightRequest[Any]) -> None:
    """Names no request that was answered since a request was to be sent: an owner that was killed may not know that it
    has answered it, and would wait for it."""
    if in_flight.follows:
        after = in_flight.frame.request.after
        del after[:]
        after.extend(each.number for each in in_flight.follows if not each.answered)


def _consequence(failed: InFlightRequest[Any], follower: InFlightRequest[Any]) -> Failure:
    """The failure of a request that follows one that has failed."""
    error, why = failed.ended_in, f"{failed.title}, {follower.reason}, has failed"
    made = errors.caused(error, why) if isinstance(error, PsError) else InternalError(f"{why}: {error!r}")
    return Failure(made, failed.failure)
