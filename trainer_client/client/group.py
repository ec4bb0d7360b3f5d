"""The owners of a group, as the directory of the group tells them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ps_wire.errors import InvalidArgumentError, SessionLostError, UnavailableError
from ps_wire.v1.operations_pb2 import Member, MembersRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainer_client.handles.other_owners import OtherOwners
    from trainer_client.session.session import Session

_log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 1.0
"""Seconds that a client waits for owners before its log says so."""


class Group:
    """The owners of a group. The directory is asked for them when the program wants to know, and at no other time.

    `owners` has the names of those that are connected, in the order of their numbers in the directory.
    """

    def __init__(self, others: OtherOwners, sessions: Mapping[str, Session], patience: float) -> None:
        self.owners: Sequence[str] = ()
        self._others = others
        self._sessions = sessions
        self._patience = patience
        self._numbers: dict[str, int] = {}

    async def find(self, at_least: int = 1) -> list[str]:
        """Asks the directory for the owners, and connects to new ones. Raises `UnavailableError` if there are too few.

        An owner that is not in the directory any more is forgotten, unless this client is still connected to it: the
        directory may have begun anew, and will hear of it again.
        """
        if not isinstance(at_least, int) or isinstance(at_least, bool) or not 0 < at_least < 1 << 32:
            raise InvalidArgumentError(f"at_least= is a number of owners from 1, not {at_least!r}")
        listed = _owners(await self._members(at_least))
        reached = await asyncio.gather(*map(self._reach, listed))
        there = {owner.name: owner.id for owner, is_there in zip(listed, reached, strict=True) if is_there}
        connected = {name for name in self._numbers if self._is_connected(name)}
        self._numbers = {name: self._numbers[name] for name in connected} | there
        self.owners = tuple(sorted(self._numbers, key=lambda name: (self._numbers[name], name)))
        return list(self.owners)

    async def _members(self, at_least: int) -> list[Member]:
        """The members of the group, once there are enough owners among them."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._patience
        waits = loop.call_later(_QUIET_SECONDS, self._say_that_it_waits, at_least)
        try:
            while True:
                left = max(ends - loop.time(), 0.0)
                try:
                    directory = await self._others.asked()
                    members = await self._others.members(
                        directory, MembersRequest(owners_at_least=at_least, wait_seconds=left)
                    )
                    break
                except SessionLostError:
                    if not left:  # else its owner was started again, and has ended the request with the session
                        raise
        finally:
            waits.cancel()
        if len(_owners(members)) < at_least:
            raise UnavailableError(self._too_few(members, at_least))
        return members

    async def _reach(self, owner: Member) -> bool:
        """Connects to an owner, if there is no session with it; says whether the group still has it then."""
        session = self._sessions.get(owner.name)
        if session is None or session.state != "disconnected" or session.address == owner.address:
            pass
        elif session.follows:
            session.try_now()
        else:
            await session.give_up(
                SessionLostError(
                    f"owner {owner.name!r} listens at {owner.address} now, and no longer at {session.address}: ask for "
                    "the objects again, and repeat the pass; ps.run(step, …, attach=…) does both"
                )
            )
        try:
            session = await self._others.reach(owner.name, owner.address)
            if session.address != owner.address:
                await session.settled()
        except UnavailableError as error:
            # One that has crashed stays in the directory until its lease has run out.
            if owner.name in {each.name for each in await self._members(0)}:
                raise UnavailableError(f"owner {owner.name!r} is in the group, but {error}") from error
            return False
        return True

    def _is_connected(self, name: str) -> bool:
        session = self._sessions.get(name)
        return session is not None and session.state == "connected"

    def _say_that_it_waits(self, at_least: int) -> None:
        _log.warning(
            "waiting until the directory at %s lists %s, for up to %g s",
            *(self._address, f"{at_least} owners" if at_least > 1 else "an owner", self._patience),
        )

    def _too_few(self, members: Sequence[Member], at_least: int) -> str:
        owners = _owners(members)
        there = f"{len(owners)} ({', '.join(each.name for each in owners)})" if owners else "none"
        wanted = f"{at_least} owners are" if at_least > 1 else "an owner is"
        message = (
            f"{wanted} wanted, and the group with its directory at {self._address} has {there} after "
            f"{self._patience:g} s: start owners with `ps-service serve --directory {self._address}`, and the one that "
            "listens there with `--directory self`"
        )
        programs = [each.name for each in members if not each.is_owner]
        if programs:
            message += f"; these members are programs that have joined by themselves: {', '.join(programs)}"
        return message

    @property
    def _address(self) -> str:
        directory = self._others.directory
        return "" if directory is None else directory.address


def _owners(members: Iterable[Member]) -> list[Member]:
    return [each for each in members if each.is_owner]
