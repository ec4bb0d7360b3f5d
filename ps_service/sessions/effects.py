"""What requests change, for the durable log. An owner without one collects nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from google.protobuf.message import Message

    from ps_service.group.formation import MemberEntry
    from ps_service.hosting.objects import HostedObject
    from ps_service.policies.offers import OfferKey
    from ps_service.sessions.reply_cache import Answer
    from ps_service.training.following import Held
    from ps_service.training.optimizers import HostedOptimizer, Present
    from ps_wire.attempts import Attempt
    from ps_wire.codec.payload import Buffer
    from ps_wire.errors import StorageError
    from ps_wire.refs import ContextId
    from ps_wire.v1.checkpoint_pb2 import MoveEffect
    from ps_wire.v1.operations_pb2 import LogStatus


CallKind = tuple[str, str, str, bool, bool]
"""What calls have in common that change the same: the function, or the object and its method, whether the module
trains, and whether it does so by itself."""


class Effects(Protocol):
    """What one request changes. All of it is one record of the log, with the answer of the request."""

    def take_turn(self) -> None:
        """Has other requests wait that change something, until this one is committed or abandoned: records stand in the
        order of the changes. Raises as `StepLock`."""

    @property
    def has_turn(self) -> bool:
        """Whether other requests wait now, the event loop among them: no other process may be asked for anything."""

    def check(self, nbytes: int) -> None:
        """Raises `StorageError` if the log has no room for so many bytes and a little more."""

    def changes(self, hosted: HostedObject, alone: bool = False) -> None:
        """An object is made, or its state may change before the request is answered. If it is to do so `alone`, others
        that may change it wait until that is in the log: a record must not have half of what they do."""

    def pause(self) -> None:
        """The answer comes later: others need not wait meanwhile. What was collected so far is appended. Raises
        `StorageError`."""

    def changes_rows(self, table: HostedObject) -> None:
        """Rows of a table are about to change. Takes a turn, and the rows for itself."""

    def uses_rows(self, table: HostedObject) -> None:
        """Rows of a table are looked up, and some may be added, admitted or evicted for that."""

    def changes_buffers(self, hosted: HostedObject) -> None:
        """Of a module, only buffers have changed."""

    def will_step(self, optimizer: HostedOptimizer, nbytes: int) -> None:
        """An optimizer is about to step with so many bytes of gradients. Takes a turn. Raises `StorageError` if the log
        has no room, before anything changes."""

    def attempts(self, trainer: bytes, run: int) -> None:
        """The steps are those of an attempt of a pass that may be run again."""

    def prepares(
        self, optimizer: HostedOptimizer, id: ContextId, attempt: Attempt | None, present: Sequence[Present]
    ) -> None:
        """Keeps the gradients of a pass for the step of an optimizer. Takes a turn. Raises `StorageError` if the log
        has no room."""

    def in_pass(self, id: ContextId) -> None:
        """The steps are those of a pass, which may have been prepared."""

    def steps(self, optimizer: HostedOptimizer, version: int, present: Sequence[Present], place: int) -> None:
        """An optimizer makes a step with these gradients, which gives it that version. It has that place among the
        steps of the optimizer in its pass."""

    def joins(self, optimizer: HostedOptimizer, trainer: bytes) -> None:
        """A trainer uses an optimizer without rounds from now on. The request has a turn."""

    def leaves(self, optimizer: HostedOptimizer, trainer: bytes) -> None:
        """A trainer does not use an optimizer without rounds any more. The request has a turn."""

    def holds(self, optimizer: HostedOptimizer, key: OfferKey, held: Held) -> None:
        """Gradients are held for rounds that another owner decides. The request has a turn."""

    def lets_go(self, optimizer: HostedOptimizer, key: OfferKey) -> None:
        """Gradients of an offer are not held any more. The request has a turn."""

    def keep_answer(self) -> None:
        """The log has the answer, whatever else the request changes: what it tells has come in another way."""

    def repeats(self, operation: str, request: Message, payload: Buffer | None) -> None:
        """The request changes the same whenever it runs in its order among the others."""

    def enters(self, entry: MemberEntry) -> None:
        """A member has entered the directory, or has changed its address."""

    def moves(self, effect: MoveEffect) -> None:
        """A move has made something of objects. The request has a turn."""

    def durable_version(self, object_id: str, version: int) -> int:
        """The version up to which an optimizer is on the disk when the answer is sent, which tells its `version`."""

    def commit(self, trainer: bytes, number: int, answer: Answer) -> None:
        """Appends the record, if something has changed, and ends the turn. Raises `StorageError` if it cannot."""

    def abandon(self) -> None:
        """Ends the turn, if it was not committed."""


class EffectLog(Protocol):
    """The log of an owner. `acknowledges` tells whether answers wait until their records are on the disk, and `came_at`
    is the position behind the last note that a session has begun."""

    acknowledges: bool
    came_at: int

    def begin(self, kind: CallKind | None = None) -> Effects:
        """Collects what a request changes. Raises `StorageError` if it is a call of a `kind` that has changed what
        cannot be appended yet."""

    @property
    def end(self) -> int:
        """The position behind its last record."""

    @property
    def state(self) -> str:
        """`writable`, `full` (the last record could not be written) or `failed` (none can be written any more)."""

    @property
    def why(self) -> str:
        """Why it cannot be written; empty if it can."""

    def describe(self, message: LogStatus) -> None:
        """Writes its state, and how far it is on the disk. May be called in any thread."""

    def durable_version(self, object_id: str) -> int:
        """The version up to which an optimizer is on the disk."""

    def ended(self, trainer: bytes) -> None:
        """The session of a trainer has ended."""

    def when_synced(self, position: int, callback: Callable[[StorageError | None], object]) -> None:
        """Calls a function, in any thread, once the log is on the disk up to a position, or with the error if it could
        not be written there."""

    def when_all_synced(self, callback: Callable[[StorageError | None, int], object]) -> None:
        """Syncs at once, and calls a function, in any thread, with the position up to which that was asked for, or with
        an error."""


async def synced(log: EffectLog, position: int) -> StorageError | None:
    """Waits until the log is on the disk up to a position; the error if it could not be written there."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[StorageError | None] = loop.create_future()
    log.when_synced(position, lambda error: loop.call_soon_threadsafe(_settle, waiting, error))
    return await waiting


def _settle(future: asyncio.Future[StorageError | None], error: StorageError | None) -> None:
    if not future.done():  # its caller may have gone
        future.set_result(error)


class Durability:
    """The `log` of an owner; None if it has none. The owner started when it ended at `began`. The checkpoint that it
    started from has what is in the log before the `position`, and of rows of parameters (a parameter, their end, a
    position) what is before a later one; the last of it was read when the log ended at `whole`. The `code` is that of
    the record before the position, if the log is signed."""

    log: EffectLog | None = None
    position = 0
    code = b""
    whole = 0
    began = 0
    newer: Sequence[tuple[torch.Tensor, int, int]] = ()
