"""What an owner reports of its communicators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ps_wire.status.parts import CommunicatorStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ps_service.collectives.communicator import Communicator
    from ps_service.collectives.forming import Forming

_MOST_AWAITED: Final = 16
"""Most members that are named because others wait for them."""


def of_all(complete: Mapping[Communicator, int], forming: Iterable[Forming]) -> list[CommunicatorStatus]:
    """Communicators, with the number of members that have not left, and those whose members are still joining."""
    found = [_of(communicator, present) for communicator, present in complete.items()]
    return [*found, *(CommunicatorStatus(each.name, each.size, len(each.joined), 0, (), 0, "") for each in forming)]


def _of(communicator: Communicator, present: int) -> CommunicatorStatus:
    late = sorted(communicator.awaited())[:_MOST_AWAITED]
    return CommunicatorStatus(
        communicator.name,
        communicator.size,
        present,
        len(communicator.open),
        tuple(map(communicator.member, late)),
        communicator.nbytes,
        "" if communicator.ending is None else communicator.ending.why,
    )
