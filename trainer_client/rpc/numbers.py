"""Asks the directory for members, and keeps their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ps_wire.errors import RAN_OUT
from ps_wire.v1.operations_pb2 import LookupRequest, Member
from trainer_client.rpc.waiting import LOOK_SECONDS, Deadline, in_time, told

if TYPE_CHECKING:
    from trainer_client.handles.other_owners import OtherOwners
    from trainer_client.session.session import Session


class _Kept(NamedTuple):
    """A member that has been told, with the state of the sessions with it and with the directory then."""

    member: Session
    losses: int
    directory: Session
    directory_losses: int


class Numbers:
    """Which members have which numbers. Safe to use from several threads.

    An answer of the directory holds while there is a connection with the member, and neither that nor the directory
    ends its session. Of a member that has left, another may have the number, and one that the directory has lost may
    get another.
    """

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}

    def keep(self, number: int, member: Session, directory: Session) -> None:
        """The directory has said that the member of a session has this number."""
        self._kept[number] = _Kept(member, member.losses, directory, directory.losses)

    def find(self, number: int, directory: Session) -> str | None:
        """The name of the member with a number; None if that is not known."""
        kept = self._kept.get(number)
        if kept is None or kept.member.state != "connected" or kept.member.losses != kept.losses:
            return None
        is_same = kept.directory is directory and directory.losses == kept.directory_losses
        return kept.member.owner if is_same else None


async def looked_up(
    others: OtherOwners, directory: Session, who: str | int, caller: str, seconds: float, waits: bool
) -> Member:
    """Asks the directory for a member, by name or number, for so many seconds. If it `waits`, the directory waits as
    long until the member has joined. Raises `DeadlineExceededError` if it does not answer, and `UnknownNameError`."""
    request = LookupRequest(name=who) if isinstance(who, str) else LookupRequest(id=who)
    longest = seconds
    if waits:
        request.wait_seconds = seconds
        longest += LOOK_SECONDS  # the directory answers then, and says which members there are
    at = directory.address
    async with (
        in_time(longest, lambda: f"{RAN_OUT}: the directory at {at} did not say within {seconds:.3g} s who {who!r} is"),
        told(lambda: f"{caller!r} calls {who!r}, which is not in the directory at {at}", Deadline(seconds)),
    ):
        return await others.ask(directory, request)
