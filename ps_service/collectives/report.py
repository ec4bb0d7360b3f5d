"""What an owner reports of its communicators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ps_service.collectives.communicator import Communicator
    from ps_service.collectives.forming import Forming

_MOST_AWAITED: Final = 16
"""Most members that are named because others wait for them."""


class CommunicatorReport(NamedTuple):
    """A communicator at one moment.

    Attributes:
        name: Its name.
        size: How many members it has.
        members: Those that have joined and not left.
        open: Collectives that wait for members.
        waiting_for: The members that these wait for, up to 16.
        nbytes: Bytes of values that it holds.
        ended: Why it has ended; empty if it has not.
    """

    name: str
    size: int
    members: int
    open: int = 0
    waiting_for: tuple[str, ...] = ()
    nbytes: int = 0
    ended: str = ""


def of_all(complete: Mapping[Communicator, int], forming: Iterable[Forming]) -> list[CommunicatorReport]:
    """Communicators, with the number of members that have not left, and those whose members are still joining."""
    found = [_of(communicator, present) for communicator, present in complete.items()]
    return [*found, *(CommunicatorReport(each.name, each.size, len(each.joined)) for each in forming)]


def _of(communicator: Communicator, present: int) -> CommunicatorReport:
    late = sorted(communicator.awaited())[:_MOST_AWAITED]
    return CommunicatorReport(
        communicator.name,
        communicator.size,
        present,
        len(communicator.open),
        tuple(map(communicator.member, late)),
        communicator.nbytes,
        "" if communicator.ending is None else communicator.ending.why,
    )
