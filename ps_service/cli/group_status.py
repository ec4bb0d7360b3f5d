"""Asks all owners of a group for their status at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ps_service.cli import probe
from ps_wire.errors import UnavailableError

if TYPE_CHECKING:
    from ps_wire.status import MemberStatus, OwnerStatus

_AT_ONCE: Final = 32
"""Owners that are asked at the same time."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A member of the group that does not answer.

    Attributes:
        name: Its name.
        address: Its address in the directory.
        why: Why it does not answer.
    """

    name: str
    address: str
    why: str


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The status of the owners of a group.

    Attributes:
        owners: Those that have answered, in the order of their numbers.
        missing: Those that have not.
    """

    owners: tuple[OwnerStatus, ...]
    missing: tuple[Missing, ...] = ()

    def as_plain(self) -> dict[str, Any]:
        """The content as what JSON has."""
        owners = [each.as_plain() for each in self.owners]
        return {"owners": owners, "missing": [asdict(each) for each in self.missing]}


def ask(address: str, timeout_seconds: float = 5.0, *, most: int = 0, events: int = 0) -> GroupStatus:
    """The status of all owners of the group of an owner; that of the owner alone, if it is in no group.

    Args:
        address: Host and port of any of them.
        timeout_seconds: How long to wait for each.
        most, events: As for `probe.status`.

    Raises:
        UnavailableError: No owner answers there, or that with the directory does not.
    """
    first = probe.status(address, timeout_seconds, most=most, events=events)
    members = first.members
    if not members and first.directory:
        members = probe.status(first.directory, timeout_seconds).members
    if not members:
        return GroupStatus((first,))

    def one(member: MemberStatus) -> OwnerStatus | Missing:
        if member.name == first.owner:
            return first
        try:
            return probe.status(member.address, timeout_seconds, most=most, events=events)
        except UnavailableError as error:
            return Missing(member.name, member.address, str(error))

    with ThreadPoolExecutor(min(_AT_ONCE, len(members))) as pool:
        found = list(pool.map(one, members))
    missing = tuple(each for each in found if isinstance(each, Missing))
    return GroupStatus(tuple(each for each in found if not isinstance(each, Missing)), missing)
