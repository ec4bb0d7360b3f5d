"""Moves named objects from one owner to another while trainers train."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    ObjectMovedError,
    PsError,
    StaleHandleError,
    UnknownNameError,
)
from ps_wire.runtime.noop import noop
from ps_wire.tables.names import OPTIMIZER, SHARD
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Reply, Request
from trainer_client.pauses import PATIENCE_SECONDS, PAUSE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_client.pending import Pending
    from trainer_client.session.session import Session

_SHARE_OF_PASSES: Final = 0.6
"""The part of the pause that passes which have begun get to end."""

_MOST_ROUNDS: Final = 3
"""Rounds of catching up before the objects are closed."""

_AGAIN_SECONDS: Final = 0.05
"""Seconds after the objects were closed in vain until they are closed again, at first."""

_MOST_LAST: Final = 5
"""How often they are closed again after that time, when passes that use them are lost."""


class MovedObjects(NamedTuple):
    """Named objects that have moved together.

    Attributes:
        names: Their names.
        source, target: The owner that had them, and the one that has them.
        bytes: What was copied at first.
        pause: Seconds for which requests for them waited.
    """

    names: tuple[str, ...]
    source: str
    target: str
    bytes: int
    pause: float


class _NotNow(Exception):
    """The pause was over before all was done."""


class ObjectMove:
    """One move of named objects, and of what moves with them, from the owner of one session to that of another.

    The bytes go through this process. If it is gone in the middle, or an owner is, then the objects have moved or have
    not; a later move makes up for what is missing.
    """

    def __init__(self, source: Session, target: Session, names: Sequence[str], pause: float = PAUSE_SECONDS) -> None:
        if not 0 < pause <= 10:
            raise InvalidArgumentError(f"objects are closed for at most 10 seconds, not {pause!r}")
        if source is target:
            raise InvalidArgumentError(f"objects move to another owner, and {target.owner!r} has them")
        self._source, self._target = source, target
        # Those that were asked for, and all that move with them.
        self._asked = self._names = tuple(names)
        self._pause = pause
        self._move = ""
        self._bytes = self._left = 0
        self._paused = 0.0
        self._was_quiet = False
        self._staged = pb.MoveContents()

    async def run(self, patience: float = PATIENCE_SECONDS) -> MovedObjects:
        """Moves them. Begins anew if an owner was killed meanwhile. Passes that use them for all of the time are lost.
        Raises `InvalidArgumentError` if they cannot move, `DeadlineExceededError` if the pause is too short, and
        `UnknownNameError` if one that was asked for is not there, or was deleted meanwhile."""
        ends = asyncio.get_running_loop().time() + patience
        while True:
            try:
                await self._attempt(ends)
                break
            except ObjectMovedError as moved:
                session = await self._source.moves.follow(moved)
                if moved.owner and session is not self._target:
                    raise
                if moved.owner:
                    break
            except StaleHandleError:
                if asyncio.get_running_loop().time() >= ends:
                    raise
            except UnknownNameError as error:
                if not self._move:
                    raise
                what = " or ".join(map(repr, self._asked))
                raise UnknownNameError(
                    f"{what} was deleted while it moved to owner {self._target.owner!r}: {error}"
                ) from None
        return MovedObjects(self._names, self._source.owner, self._target.owner, self._bytes, self._paused)

    async def _attempt(self, ends: float) -> None:
        begun = await self._call(self._source, pb.MOVE_BEGIN, names=self._asked, owner=self._target.owner)
        self._move, self._names = begun.move, tuple(begun.groups[0].names)
        self._bytes = 0
        try:
            await self._copy()
            await self._call(self._target, pb.MOVE_MAKE, owner=self._source.owner)
            await self._switch(ends)
        except BaseException:
            with suppress(PsError):
                # If the source does not know the move any more, it may have released the objects.
                if await self._call(self._source, pb.MOVE_END, _done):
                    await self._call(self._target, pb.MOVE_DROP)
            raise

    async def _copy(self) -> int:
        """Copies what has changed since the last time; returns how many bytes."""
        again, copied, staging = True, 0, list[Any]()
        while True:
            contents, found, left = await self._call(self._source, pb.MOVE_READ, self._contents, again=again)
            copied += len(found)
            self._staged = pb.MoveContents(records=contents.records, nbytes=contents.nbytes)
            staging.append(self._stage(contents, found))
            if len(staging) > 1:
                await staging.pop(0)
            again = False
            if not left:
                break
        for each in staging:
            await each
        self._bytes = max(self._bytes, copied)
        return copied

    @staticmethod
    def _contents(reply: Any, payload: Any) -> tuple[pb.MoveContents, torch.Tensor, int]:
        contents = reply.move.contents
        return contents, Decoder(payload).decode(contents.bytes), reply.move.left

    def _stage(self, contents: pb.MoveContents, found: torch.Tensor) -> Pending[Any]:
        payload = PayloadWriter()
        request = pb.MoveRequest(action=pb.MOVE_STAGE, move=self._move)
        told = request.contents
        told.records, told.nbytes = contents.records, contents.nbytes
        told.blocks.extend(contents.blocks)
        Encoder(payload).encode_into(told.bytes, found)
        return self._target.submit(Request(move=request), payload, noop)

    async def _switch(self, ends: float) -> None:
        loop = asyncio.get_running_loop()
        wait, last = _AGAIN_SECONDS, 0
        for _ in range(_MOST_ROUNDS):
            if not await self._copy():
                break
        while True:
            began = loop.time()
            self._was_quiet = False
            await self._call(self._source, pb.MOVE_CLOSE, seconds=self._pause)
            try:
                await self._quiet(began, lose=last > 0)
                if await self._handed_over():
                    break
            except _NotNow:
                pass  # another moment is looked for
            await self._call(self._source, pb.MOVE_REOPEN)
            # The target keeps what it has for a while only.
            await self._stage(self._staged, torch.empty(0, dtype=torch.uint8, device="cpu"))
            last += loop.time() >= ends
            if last > _MOST_LAST:
                raise DeadlineExceededError(self._why())
            await asyncio.sleep(wait)
            wait = min(2 * wait, 1.0)
        # The source opens them by itself when the pause is over, and releases them before that or not at all.
        self._paused = min(loop.time() - began, self._pause)
        await self._synced(self._source)
        await self._call(self._target, pb.MOVE_ACCEPT)

    async def _quiet(self, began: float, lose: bool) -> None:
        """Waits until nothing uses the objects."""
        loop = asyncio.get_running_loop()
        while not await self._call(self._source, pb.MOVE_QUIET, _done, lose=lose):
            if loop.time() - began > _SHARE_OF_PASSES * self._pause:
                raise _NotNow
            await asyncio.sleep(0.001)
        self._was_quiet = True

    async def _handed_over(self) -> bool:
        """Copies the last changes, and has the source release the objects. False if the pause was too short."""
        self._left = await self._copy()
        await self._call(self._target, pb.MOVE_ARRIVE)
        await self._synced(self._target)
        done: bool = await self._call(self._source, pb.MOVE_RELEASE, _done)
        return done

    def _why(self) -> str:
        what = ", ".join(map(repr, self._names))
        if not self._was_quiet:
            return (
                f"there was no moment in which nothing used {what} on owner {self._source.owner!r}; nothing has moved. "
                f"If passes take longer than {self._pause:g} s, allow a longer pause"
            )
        return (
            f"what changes of {what} between two copies, {self._left:,} bytes, cannot be copied from owner "
            f"{self._source.owner!r} to {self._target.owner!r} in {self._pause:g} s; nothing has moved. Allow a longer "
            "pause"
        )

    async def _synced(self, session: Session) -> None:
        """Waits until what an owner has done is on its disk."""
        request = Request(durable=pb.DurableRequest(position=session.requests.position))
        await session.submit(request, None, noop)

    def _call(self, session: Session, action: Any, read: Any = None, **fields: Any) -> Pending[Any]:
        request = pb.MoveRequest(action=action, move=self._move, **fields)
        return session.submit(Request(move=request), None, read or (lambda reply, _: reply.move))


def _done(reply: Reply, _: object) -> bool:
    return reply.move.done


class Drain:
    """The moves of all named objects away from the owner of a session, to those of others: each group of objects to the
    one that has got the fewest bytes so far. `failed` has why some could not move."""

    def __init__(self, source: Session, targets: Sequence[Session], pause: float, patience: float) -> None:
        self._source, self._pause, self._patience = source, pause, patience
        self._given = dict.fromkeys(targets, 0)
        self.failed: list[PsError] = []

    async def run(self) -> list[MovedObjects]:
        """Moves them. Returns the moves that were made."""
        made, before = list[MovedObjects](), list[pb.MoveGroup]()
        while True:
            groups, again, self.failed = await self._groups(), False, []
            for group in groups:
                target = min(self._given, key=lambda each: self._given[each], default=self._source)
                try:
                    if group.refusal:
                        raise InvalidArgumentError(group.refusal)
                    move = ObjectMove(self._source, target, group.names, self._pause)
                    made.append(await move.run(self._patience))
                    self._given[target] += group.nbytes
                except PsError as error:  # the others can move all the same
                    self.failed.append(error)
                    # One of them was deleted meanwhile, and the rest is to move.
                    again |= isinstance(error, UnknownNameError)
            if not again or groups == before:
                return made
            before = groups

    async def _groups(self) -> list[pb.MoveGroup]:
        status = await self._source.submit(Request(status=pb.StatusRequest()), None, lambda reply, _: reply.status)
        if all(not each.name or each.class_name in (SHARD, OPTIMIZER) for each in status.objects):
            return []  # an owner without a log may have tables, and cannot say what else it has
        request = Request(move=pb.MoveRequest(action=pb.MOVE_PLAN))
        return await self._source.submit(request, None, lambda reply, _: list(reply.move.groups))
