"""Conversations: the requests of each session, across broken streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from ps_service.engine.engine import Engine
from ps_service.rpc.dispatch import failure, perform_quickly, stopping
from ps_service.rpc.exchange import Exchange
from ps_service.rpc.handlers import OPERATIONS
from ps_service.rpc.jobs import Job
from ps_service.state.journal import Answer
from ps_service.state.sessions import Session
from ps_wire.assembler import Message
from ps_wire.errors import InvalidArgumentError, OverloadedError, SessionLostError, TooLargeError
from ps_wire.limits import MAX_NESTING
from ps_wire.outbox import Outbox

_log = logging.getLogger("ps_service.conversations")


class Conversation:
    """Runs a session's requests, each at most once, and sends each answer on whatever stream is open then.

    Args:
        engine: The owner.
        session: Whose requests they are.

    Attributes:
        outbox: What waits to be sent on the open stream; None while there is none.
    """

    def __init__(self, engine: Engine, session: Session) -> None:
        self.session = session
        self.outbox: Outbox | None = None
        self._engine = engine
        self._running: dict[int, Job] = {}
        self._turn = 0
        self._busy = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self._sending: set[asyncio.Task[None]] = set()
        self._stream: asyncio.Task[None] | None = None

    def interrupt(self) -> None:
        """Ends the stream that is open, if there is one: the trainer has opened another."""
        self.outbox = None
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    def greeted(self) -> int:
        """The trainer has come on a new stream, which ends the one before.

        Returns:
            The turn of the new one, for `take_over`.
        """
        self.interrupt()
        self._turn += 1
        return self._turn

    def take_over(self, outbox: Outbox, turn: int) -> bool:
        """From now on answers go to this outbox; the current task serves its stream.

        Returns:
            Whether that is so: not if the trainer has come on a newer stream, before this one's welcome was sent.
        """
        if turn != self._turn:
            return False
        self.outbox = outbox
        self._stream = asyncio.current_task()
        return True

    def leave(self, outbox: Outbox) -> None:
        """The stream of this outbox has ended."""
        if self.outbox is outbox:
            self.outbox = None
            self._stream = None

    def take(self, message: Message) -> None:
        """Takes up a request, or answers it again if it was taken before."""
        number = message.frame.number
        request = message.frame.request
        trainer = self.session.trainer
        self.confirm(request.confirmed)
        if number in self._running:
            return
        known = self._engine.journal.recall(trainer, number)
        if known is not None:
            self._send(known)
        elif message.error is not None:
            self._refuse(failure(message.error, number))
        elif number in self.session.taken:
            self._refuse(failure(SessionLostError(f"request {number} was answered and confirmed before"), number))
        elif len(self._running) >= self._engine.limits.max_in_flight:
            limit = self._engine.limits.max_in_flight
            self._refuse(failure(OverloadedError(f"{limit} requests of this session are in flight already"), number))
        else:
            self._start(number, message)

    def confirm(self, numbers: Sequence[int]) -> None:
        """The trainer has these answers."""
        self._engine.journal.forget(self.session.trainer, numbers)
        for number in numbers:
            self.session.taken.add(number)

    def cancel(self, number: int) -> None:
        """The trainer no longer waits for this request, and will not send it again."""
        self.session.taken.add(number)
        job = self._running.get(number)
        if job is not None:
            job.cancel()

    @property
    def busy(self) -> bool:
        """Whether something is running, besides what waits for others."""
        return bool(self._busy) or any(job.is_due for job in self._running.values())

    async def settled(self) -> None:
        """Waits until nothing is running but what waits for others."""
        await self._settled.wait()

    def end(self) -> None:
        """Cancels what is running; nobody will ask for it."""
        for job in list(self._running.values()):
            job.cancel()

    def cut_off(self) -> None:
        """Answers what is still running, once and for all; what can be run later has no answer now, and will be."""
        for number, job in list(self._running.items()):
            rules = OPERATIONS[job.operation]
            if job.drop(even_if_begun=rules.waits or not rules.mutates):
                self.session.taken.discard(number)
            else:
                job.cut_off()

    def _start(self, number: int, message: Message) -> None:
        envelope = message.frame.request
        operation = envelope.WhichOneof("operation")
        if operation is None:
            self._refuse(failure(InvalidArgumentError("a request without an operation"), number))
            return
        if envelope.depth > MAX_NESTING:
            text = (
                f"more than {MAX_NESTING} requests are nested in each other; does the code that is called call itself?"
            )
            self._refuse(failure(TooLargeError(text), number))
            return
        request = getattr(envelope, operation)
        mutates = OPERATIONS[operation].mutates
        if not self._engine.gate.admits(self.session.trainer, operation, request, mutates, envelope.depth):
            self._turn_away(number)
            return
        if mutates:
            # Others may run again when their answer is lost.
            self.session.taken.add(number)
        quickly = perform_quickly(self._exchange(message), operation, request, number)
        if quickly is not None:
            self._finish(operation, number, quickly)
            return
        exchange = self._exchange(message)
        job = Job(number, exchange, operation, request, envelope.timeout_seconds, envelope.depth, self._finished)
        self._running[number] = job
        self._engine.counters.running += 1
        if not OPERATIONS[operation].waits:
            self._busy += 1
            self._settled.clear()
        job.start()

    def _turn_away(self, number: int) -> None:
        # Of an owner that will go on from where it stops, its trainer hears nothing, and sends it again after that.
        if not self._engine.durable:
            self._refuse(failure(stopping(self._engine), number))

    def _exchange(self, message: Message) -> Exchange:
        return Exchange(self._engine, self.session.trainer, message.payload)

    def _finished(self, job: Job, result: Answer) -> None:
        del self._running[job.number]
        self._engine.counters.running -= 1
        if not OPERATIONS[job.operation].waits:
            self._busy -= 1
        if not self._busy:
            self._settled.set()
        self._finish(job.operation, job.number, result)

    def _finish(self, operation: str, number: int, result: Answer) -> None:
        journal = self._engine.journal
        if self.session.ended:
            self._engine.registry.revoke(self.session.trainer, result.granted)
            return
        # A reference must not be handed out twice, even by what may be run again.
        kept = OPERATIONS[operation].mutates or bool(result.granted) or bool(result.held)
        if kept:
            journal.record(self.session.trainer, number, result)
        if journal.instant or not kept:
            self._send(result, later=not OPERATIONS[operation].awaited)
        else:
            self._later(self._send_when_durable(result))

    async def _send_when_durable(self, result: Answer) -> None:
        await self._engine.journal.flushed()
        self._send(result)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def _refuse(self, error: Answer) -> None:
        self._engine.counters.refuse(error.reply.error.code)
        self._send(error)

    def _send(self, result: Answer, later: bool = False) -> None:
        # Without a stream the answer waits in the journal until the trainer is back and asks again.
        if self.outbox is not None:
            self.outbox.put(result.frame, result.chunks, result.nbytes, later)


class Conversations:
    """The conversations of an owner, one per session; ends those whose lease has run out.

    Args:
        engine: The owner.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._all: dict[bytes, Conversation] = {}

    def get(self, trainer: bytes) -> Conversation | None:
        return self._all.get(trainer)

    def open(self, trainer: bytes) -> Conversation:
        """The conversation with a trainer, begun now if there is none."""
        session = self._engine.sessions.open(trainer)
        known = self._all.get(trainer)
        if known is None or known.session is not session:
            known = self._all[trainer] = Conversation(self._engine, session)
        return known

    def end(self, conversation: Conversation) -> None:
        """Frees a session and everything it held."""
        if self._all.get(conversation.session.trainer) is conversation:
            del self._all[conversation.session.trainer]
        conversation.end()
        self._engine.end_session(conversation.session)

    def sweep(self) -> None:
        """Ends the sessions whose lease has run out."""
        for session in self._engine.sessions.expired():
            _log.info("the lease of trainer %s has run out", session.trainer.hex()[:8])
            self.end(self._all.get(session.trainer) or Conversation(self._engine, session))

    @property
    def busy(self) -> bool:
        """Whether a request is running, besides those that wait for others."""
        return any(conversation.busy for conversation in self._all.values())

    def cut_off(self) -> None:
        """Answers what is still running, as that it was cut off."""
        for conversation in self._all.values():
            conversation.cut_off()

    async def settled(self) -> None:
        """Waits until no request is running, and every answer is on its way."""
        for conversation in list(self._all.values()):
            await conversation.settled()
            if conversation.outbox is not None:
                await conversation.outbox.flushed()

    def close(self) -> None:
        """Cancels whatever is still running."""
        for conversation in self._all.values():
            conversation.end()
