"""The entry of this process in the directory of its group."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ps_wire.errors import (
    DeadlineExceededError,
    NameConflictError,
    PsError,
    ReplacedError,
    SessionLostError,
    UnavailableError,
)
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import LookupRequest, Member, RegisterReply, RegisterRequest
from trainer_client.rpc.waiting import LOOK_SECONDS, Deadline, in_time, told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from trainer_client.handles.other_owners import OtherOwners
    from trainer_client.pending import Pending
    from trainer_client.rpc.planning import MeetingFile, Plan
    from trainer_client.session.session import Session

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.02
"""Seconds between two looks into a file that does not name a directory yet."""

_LOOK_AGAIN_SECONDS: Final = 2.0
"""Seconds after which the file is read again, if the owner that it names does not answer."""

_CONFIRM_SECONDS: Final = 10.0
"""Seconds for which the directory is waited for, to ask whether another member has the place."""

_FIRST_TRY_SECONDS: Final = 0.5
_LONGEST_TRY_SECONDS: Final = 10.0
"""Longest pause between two attempts to enter the directory again."""


class Entry:
    """It is made again when the owner with the directory has lost it. `member` is as the directory describes it.

    `incarnations` are those of an owner with a data directory, newest first. If a later start of its state has taken
    its place meanwhile, or another program has joined under the name of this one, `replaced` is awaited.
    """

    def __init__(
        self,
        name: str,
        address: str,
        others: OtherOwners,
        plan: Plan,
        incarnations: Sequence[str] = (),
        replaced: Callable[[str], Awaitable[object]] | None = None,
    ) -> None:
        self.member = Member(name=name, address=address)
        self._others = others
        self.plan = plan
        self._incarnations = incarnations
        self._replaced = replaced
        self._may_renumber = plan.rank is None
        self._deadline = Deadline(plan.seconds)
        self._making = self._is_over = False
        self._returning: asyncio.Task[None] | None = None
        self._waits_for = f"the directory at {plan.directory or plan.file}"

    async def reach(self) -> Session | None:
        """Opens the session with the owner that keeps the directory, which is not known by its name yet; None if this
        process keeps it by now. Raises `UnavailableError` if it cannot be reached in time."""
        if self.plan.file is None:
            return await self._others.open(self.plan.directory)  # the session says in the log that it waits
        async with told(self._what, self._deadline):
            return await self._met(self.plan.file)

    async def _met(self, file: MeetingFile) -> Session | None:
        """Opens the session with the owner that a file names; or becomes the one that it names, if there is none."""
        while not self._deadline.over:
            if self.plan.may_keep_directory:
                file.take(self.plan.size)
            if file.taken:
                file.publish(self.member.address, self.plan.size)
                return None
            meeting = file.read(self.plan.size)
            if meeting is not None and meeting.there:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                        return await self._others.open(meeting.address)
            await asyncio.sleep(_LOOK_SECONDS)
        raise UnavailableError(f"in {file} stood no directory of a group within {self.plan.seconds:g} s")

    async def make(self, directory: Session) -> list[Member]:
        """Enters the directory, or raises a `PsError`; gives the members of a group that begins as a whole."""
        directory.when_lost(self._lost)
        self._making = True
        try:
            async with in_time(self._deadline.left() + LOOK_SECONDS, self._too_late), told(self._what, self._deadline):
                return await self._gathered(directory)
        finally:
            self._making = False

    async def confirm(self) -> None:
        """Asks the directory whether this start still has its place. If a later one has, `replaced` is awaited. Returns
        also if the directory cannot be asked in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONFIRM_SECONDS):
                while (directory := self._others.directory) is not None:
                    try:
                        await self._register(directory, 0.0)
                        return
                    except ReplacedError as error:
                        if self._replaced is not None:
                            await self._replaced(str(error))
                        return
                    except PsError:
                        await asyncio.sleep(_LOOK_SECONDS)  # the session was ended, and opens again

    async def may_meet_another(self, is_over: bool) -> bool:
        """Whether to reach the directory again, after it was left, or was that of a group that `is_over`: soon a file
        names another, or none; or another has the same address."""
        if (self.plan.file is None and not is_over) or self.plan.keeps_directory or self._deadline.over:
            return False
        await asyncio.sleep(_LOOK_SECONDS)
        return True

    def give_up(self) -> None:
        """Does not enter again from now on."""
        if self._returning is not None:
            self._returning.cancel()

    async def _gathered(self, directory: Session) -> list[Member]:
        while True:
            losses = directory.losses
            try:
                reply = await self._register(directory, min(LOOK_SECONDS, self._deadline.left()))
            except SessionLostError:
                if directory.state == "closed":
                    raise
            if directory.losses != losses:
                continue  # the owner with the directory was started again
            if not reply.missing:
                break
            there = ", ".join(f"{member.name} ({member.id})" for member in reply.members)
            missing = ", ".join(reply.missing)
            if self._deadline.over:
                raise DeadlineExceededError(
                    f"{len(reply.members)} of {self.plan.size} members came within {self.plan.seconds:g} s: {there}; "
                    f"missing: {missing}"
                )
            self._waits_for = f"{missing} (there are: {there})"
        self.member = reply.member
        if self.plan.size and not self.plan.keeps_directory:
            # So that its owner knows that the answer is here. It may leave then, and this is not answered.
            self._register(directory, 0.0)
        return list(reply.members)

    def _register(self, directory: Session, seconds: float) -> Pending[RegisterReply]:
        plan, member = self.plan, self.member
        request = RegisterRequest(name=member.name, address=member.address, id=plan.rank)
        request.world_size, request.wait_seconds, request.is_owner = plan.size, seconds, plan.is_owner
        if self._incarnations:
            request.incarnation = self._incarnations[0]
            request.earlier.extend(self._incarnations[1:])
        return directory.submit(Request(register=request), None, lambda reply, _: reply.register, None)

    def _what(self) -> str:
        return f"{self.member.name!r} joins its group, and waits for {self._waits_for}"

    def _too_late(self) -> str:
        return (
            f"{self.member.name!r} could not join its group within {self.plan.seconds:g} s: "
            f"it waited for {self._waits_for}"
        )

    def _lost(self) -> None:
        """The directory's owner has ended the session, and with it the entry: enters again."""
        if not self._making and not self._is_over and (self._returning is None or self._returning.done()):
            work = self._return()
            self._returning = asyncio.get_running_loop().create_task(work, context=contextvars.Context())

    async def _return(self) -> None:
        delay = _FIRST_TRY_SECONDS
        self.plan = self.plan._replace(rank=self.member.id)
        while True:
            directory = self._others.directory
            assert directory is not None, "it has joined"
            self._deadline = Deadline(self.plan.seconds)
            try:
                if directory.state == "closed":
                    directory = self._others.directory = await self._others.again(directory)
                await self.make(directory)
            except ReplacedError as error:
                if self._replaced is not None:
                    await self._replaced(str(error))
                return
            except PsError as error:
                _log.warning("%s is not in the directory at %s: %s", self.member.name, directory.address, error)
                if isinstance(error, NameConflictError) and await self._has_successor(directory):
                    return
                if self._may_renumber and isinstance(error, NameConflictError):
                    # A directory that began anew has given the number to a newcomer.
                    self.plan = self.plan._replace(rank=None)
            except Exception:
                # If this task ended, no member would find this one again.
                _log.exception("%s could not enter the directory at %s", self.member.name, directory.address)
            else:
                _log.info("%s has entered the directory at %s again", self.member.name, directory.address)
                return
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_TRY_SECONDS)

    async def _has_successor(self, directory: Session) -> bool:
        """Whether another program has joined under the name of this one. This one must not answer for it then: members
        that are still connected would go on with it, and others with its successor."""
        if self.plan.is_owner or self._replaced is None:
            return False
        try:
            there = await self._others.ask(directory, LookupRequest(name=self.member.name))
        except PsError:
            return False  # another has the number, or has left again
        if there.address == self.member.address:
            return False
        self._is_over = True
        await self._replaced(f"another process is {there.name!r} now, at {there.address}")
        return True
