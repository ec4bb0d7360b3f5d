"""Runs the requests of one session, on one stream after another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ps_service.requests.context import RequestContext
from ps_service.requests.error_answers import cancelled, failed_before, failure, stopping
from ps_service.requests.execution import Execution, Observer
from ps_service.requests.operations import OPERATIONS
from ps_service.requests.probe import probe_of
from ps_service.requests.run_handler import run_inline
from ps_service.rpc.session_stream import SessionStream
from ps_service.rpc.waiting_requests import Deadlines, Followers
from ps_service.sessions.gate import Gate
from ps_service.sessions.request_sources import Running
from ps_wire.errors import InvalidArgumentError, OverloadedError, PsError, SessionLostError, TooLargeError
from ps_wire.limits import MAX_NESTING, SMALL_BYTES
from ps_wire.numbers import LONGEST_SECONDS, no_seconds
from ps_wire.v1.frames_pb2 import Draining, Frame, Waiting

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.requests.operations import Operation
    from ps_service.sessions.effects import EffectLog
    from ps_service.sessions.reply_cache import Answer
    from ps_service.sessions.sessions import SessionState
    from ps_wire.connections.assembler import Message
    from ps_wire.errors import StorageError

_OPEN: Final = Gate.State.OPEN


class SessionHandler(Observer):
    """Runs the requests of a session, each at most once, and sends each answer on the stream that is open then."""

    def __init__(self, engine: Engine, session: SessionState) -> None:
        self.session = session
        self.stream = SessionStream(engine.budget, session.trainer, self._go_on, engine.fence)
        self.made: list[int] = []
        self._engine = engine
        self._running: dict[int, Execution] = {}
        self._deadlines = Deadlines(self._running)
        self._followers = Followers()
        self._busy = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self._holding = engine.budget.of(session.trainer)
        self._held: list[Execution] = []
        # Requests that follow one of them would wait for ever.
        self._turned_away: set[int] = set()

    def take(self, message: Message) -> None:
        """Accepts a request, or answers it again if it was accepted before."""
        number, envelope = message.frame.number, message.frame.request
        session, engine = self.session, self._engine
        if engine.fence.watched and not engine.fence.is_sure():
            return
        if envelope.confirmed:
            unknown = engine.reply_cache.forget(session.trainer, envelope.confirmed)
            if unknown or self._held:
                self._confirmed(unknown)
        if number in self._running:
            return
        if number in session.taken_numbers:
            self._answer_again(number)
            return
        follows, seconds = envelope.after, envelope.timeout_seconds
        depth = envelope.depth if session.may_nest else 0
        name = envelope.WhichOneof("operation")
        if (
            name is None
            or message.error is not None
            or envelope.depth > MAX_NESTING
            or not 0.0 <= seconds <= LONGEST_SECONDS
            or len(self._running) >= engine.limits.max_in_flight
            or (follows and not 0 < min(follows) <= max(follows) < number)
        ):
            self._refuse(failure(self._refusal(message), number))
            return
        operation, request = OPERATIONS[name], getattr(envelope, name)
        if session.is_checked and (refused := self._refused(operation, request)):
            self._refuse(failure(refused, number))
            return
        gate = engine.gate
        if gate.state is not _OPEN and not (
            self._turned_away.isdisjoint(follows) and gate.admits(session.trainer, operation, request, depth)
        ):
            self._turn_away(number)
            return
        if operation.mutates:
            # A request that does not mutate may run again if its answer is lost.
            session.taken_numbers.add(number)
        ctx = RequestContext(engine, session.trainer, message.payload)
        session.last_request = ctx.began
        if session.is_checked:
            ctx.asker = session.asker
        if envelope.HasField("probe"):
            ctx.probe = probe_of(engine, envelope.probe, name, request)
        answer, unanswered = self._look_back(follows, number) if follows else (None, ())
        is_full = operation.large and (engine.reply_cache.nbytes or engine.budget.unsent or self.made) and self.is_full
        try:
            if answer is None and not unanswered and not is_full:
                ctx.after = [] if ctx.probe is None else None
                answer = run_inline(ctx, operation, request, number)
            if answer is not None:
                self._send(operation, number, answer)
        finally:
            if ctx.after:
                ctx.run_after()
        if answer is None:
            ctx.after = None
            self._queue(Execution(ctx, operation, request, self, number, seconds, depth), unanswered)
        elif self._followers.of and not session.ended:
            self._followers.ended(number, answer)

    def _refused(self, operation: Operation, request: object) -> PsError | None:
        try:
            self._engine.belongings.admit(self.session.asker, self.session.namespace, operation, request)
        except PsError as error:
            return error
        return None

    def _look_back(self, numbers: Sequence[int], number: int) -> tuple[Answer | None, Sequence[int]]:
        """The answer of a request that follows others, if one of them has failed; and those that have no answer yet."""
        session, unanswered = self.session, []
        for each in numbers:
            if each in self._running or each not in session.taken_numbers:
                unanswered.append(each)
                continue
            known = self._engine.reply_cache.recall(session.trainer, each)
            if known is not None and known.reply.HasField("error"):
                return failed_before(known, number), ()
        return None, unanswered

    def _answer_again(self, number: int) -> None:
        """Answers a request that was accepted before, and is not running."""
        known = self._engine.reply_cache.recall(self.session.trainer, number)
        log = self._engine.durability.log
        if known is not None and log is not None and known.position:
            self._send_durable(log, known)
        elif known is not None:
            self.stream.send(known)
        else:
            self._refuse(failure(SessionLostError(f"request {number} was answered and confirmed before"), number))

    def _refusal(self, message: Message) -> PsError:
        """The error for a request that is not run."""
        if message.error is not None:
            return message.error
        limit = self._engine.limits.max_in_flight
        if len(self._running) >= limit:
            return OverloadedError(f"{limit} requests of this session are in flight already")
        if message.frame.request.depth > MAX_NESTING:
            return TooLargeError(
                f"more than {MAX_NESTING} requests are nested in each other; does the code that is called call itself?"
            )
        if message.frame.request.WhichOneof("operation") is None:
            return InvalidArgumentError("a request without an operation")
        seconds = message.frame.request.timeout_seconds
        if not 0.0 <= seconds <= LONGEST_SECONDS:
            return no_seconds("timeout_seconds", seconds)
        return InvalidArgumentError("a request follows only earlier ones")

    def confirm(self, numbers: Sequence[int]) -> None:
        """Drops answers that the trainer has received."""
        self._confirmed(self._engine.reply_cache.forget(self.session.trainer, numbers))

    def _confirmed(self, unknown: Sequence[int]) -> None:
        # A request with a kept answer was added to the accepted numbers before.
        for number in unknown:
            self.session.taken_numbers.add(number)
        self._go_on()

    def cancel(self, number: int) -> None:
        """Gives up a request that the trainer no longer waits for, and will not send again. It is answered
        nevertheless, because the trainer has to know which references it was granted."""
        self.session.taken_numbers.add(number)
        execution = self._running.get(number)
        if execution is not None:
            execution.cancel()
            return
        answer = cancelled(number)
        known = self._engine.reply_cache.recall(self.session.trainer, number)
        if known is not None:
            answer.frame.reply.granted.extend(known.granted)
        self.stream.send(answer)
        self._followers.ended(number, answer)

    def tell_draining(self, turned_away: Sequence[int] = ()) -> None:
        """Tells the trainer that the owner drains, if it lets open passes end, and which requests were turned away."""
        outbox = self.stream.outbox
        if outbox is not None and self._engine.gate.state is Gate.State.DRAINING:
            outbox.put(Frame(draining=Draining(turned_away=turned_away)))

    @property
    def busy(self) -> bool:
        """Whether a request is running, besides those that wait for other members."""
        return bool(self._busy) or any(execution.is_due for execution in self._running.values())

    async def settled(self) -> None:
        """Waits until no request is running, besides those that wait for other members."""
        await self._settled.wait()

    def running(self) -> Iterator[Running]:
        """The requests that have no answer yet, but for reports about the owner. May be called in any thread."""
        # A list is made at once, while other threads wait.
        executions = list(self._running.values())
        trainer = self.session.trainer
        return (
            Running(trainer, each.request, each.number, each.ctx.made)
            for each in executions
            if not each.operation.apart
        )

    def end(self) -> None:
        """Cancels the running requests, because the session has ended."""
        for execution in list(self._running.values()):
            execution.cancel()
        self._deadlines.close()

    def cut_off(self) -> None:
        """Answers running requests as cut off. Those that can run again get no answer, and are sent again."""
        for number in list(self._followers.of):
            self._drop_followers(number)
        for number, execution in list(self._running.items()):
            operation = execution.operation
            if execution.drop(even_if_begun=operation.waits or not operation.mutates):
                self.session.taken_numbers.discard(number)
            else:
                execution.cut_off()

    def _queue(self, execution: Execution, follows: Sequence[int] = ()) -> None:
        self._running[execution.number] = execution
        payload = execution.ctx.payload
        if payload is not None and len(payload) > SMALL_BYTES:
            execution.nbytes = len(payload)
            self._engine.budget.take(self._holding, execution.nbytes)
        if not execution.operation.waits:
            self._busy += 1
            self._settled.clear()
        if execution.seconds:
            self._deadlines.watch(execution)
        if not follows:
            execution.submit()
            return
        if execution.nbytes:
            # The others may be queued behind unread messages. The trainer counts it until it is answered.
            execution.waiting_bytes, execution.nbytes = execution.nbytes, 0
            self._engine.budget.begin_wait(self._holding, execution.waiting_bytes)
        self._followers.add(execution, follows)

    def _turn_away(self, number: int) -> None:
        # An owner that will continue from a checkpoint does not answer; the trainer sends the request again later.
        if not self._engine.durable:
            self._refuse(stopping(self._engine, number))
            return
        self._turned_away.add(number)
        self.tell_draining([number, *self._drop_followers(number)])

    def _drop_followers(self, number: int) -> list[int]:
        """Forgets the requests that wait for a request, directly or not. The trainer sends those with the returned
        numbers again."""
        left, dropped = self._followers.take(number), []
        while left:
            execution = left.pop()
            if execution.drop(even_if_begun=False):
                self._engine.counters.running -= not execution.operation.apart
                self._forget(execution)
                self.session.taken_numbers.discard(execution.number)
                dropped.append(execution.number)
                left += self._followers.take(execution.number)
        return dropped

    # As the observer of executions

    @property
    def is_full(self) -> bool:
        """Whether the session's answers that are kept or being sent use up the budget."""
        engine, limits = self._engine, self._engine.limits
        held = engine.reply_cache.nbytes_of(self.session.trainer) + self._holding.unsent + sum(self.made)
        of_all = engine.reply_cache.nbytes + engine.budget.unsent
        return held > 0 and (held >= limits.max_session_bytes or of_all >= limits.max_owner_bytes)

    def hold(self, execution: Execution) -> None:
        """Keeps an execution until there is space for its answer, and then queues it again."""
        self._held.append(execution)
        self._go_on()

    def begin_wait(self, execution: Execution) -> None:
        """Counts the payload of an execution whose code waits for a request of its own."""
        nbytes, execution.nbytes = execution.nbytes, 0
        if nbytes:
            execution.waiting_bytes = nbytes
            self._engine.budget.begin_wait(self._holding, nbytes)
            self._say_waiting(execution)

    def release(self, execution: Execution, waits: bool = False) -> None:
        """Counts the payload of an execution as freed."""
        nbytes, execution.nbytes = execution.nbytes, 0
        if nbytes:
            self._engine.budget.release(self._holding, nbytes)
            if waits:
                self._say_waiting(execution)
        nbytes, execution.waiting_bytes = execution.waiting_bytes, 0
        if nbytes:
            self._engine.budget.end_wait(self._holding, nbytes)

    def finished(self, execution: Execution, answer: Answer) -> None:
        """Sends the answer of an execution. Its payload counts until its code has ended."""
        self._forget(execution)
        self._send(execution.operation, execution.number, answer)
        if self._followers.of and not self.session.ended:
            self._followers.ended(execution.number, answer)

    def _forget(self, execution: Execution) -> None:
        if not execution.begun:
            self.release(execution)
        del self._running[execution.number]
        self._followers.forget(execution)
        if execution in self._held:
            self._held.remove(execution)
        if not execution.operation.waits:
            self._busy -= 1
        if not self._busy:
            self._settled.set()

    def _say_waiting(self, execution: Execution) -> None:
        outbox = self.stream.outbox
        if outbox is not None and execution.number in self._running:
            outbox.put(Frame(waiting=Waiting(numbers=[execution.number])))

    def _go_on(self) -> None:
        """Queues the executions that were held back again, if there is space for answers."""
        if self._held and not self.is_full:
            held, self._held = self._held, []
            for execution in held:
                execution.submit()

    def _send(self, operation: Operation, number: int, result: Answer) -> None:
        """Keeps an answer if its request must not run twice, and sends it."""
        if self.session.ended:
            self._engine.registry.revoke(self.session.trainer, result.granted)
            return
        kept = operation.mutates
        if not kept and (result.granted or result.held):
            # A reference must not be granted twice, even by a request that may run again.
            kept = True
            self.session.taken_numbers.add(number)
        if kept:
            self._engine.reply_cache.record(self.session.trainer, number, result)
        later, log = result.unhurried or not operation.awaited, self._engine.durability.log
        if log is None or not result.position:
            self.stream.send(result, later, kept)
        else:
            self._send_durable(log, result, later)

    def _send_durable(self, log: EffectLog, answer: Answer, later: bool = False) -> None:
        """Sends a kept answer once what its request has changed is as durable as it has to be."""

        loop = asyncio.get_running_loop()

        def synced(error: StorageError | None) -> None:
            sent = answer if error is None else failure(error, answer.frame.number)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.stream.send, sent, later)

        if log.acknowledges:
            log.when_synced(answer.position, synced)
        else:
            self.stream.send(answer, later)

    def _refuse(self, error: Answer) -> None:
        self._engine.counters.refuse(error.reply.error.code)
        self.stream.send(error)
        self._followers.ended(error.frame.number, error)
