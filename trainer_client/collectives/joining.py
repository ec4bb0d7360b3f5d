"""Joins communicators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_client.collectives.communicator import join
from trainer_client.pending import DEFAULT, Pending

if TYPE_CHECKING:
    from trainer_client.collectives.communicator import Communicator
    from trainer_client.session.session import Session


class Joins:
    """The part of a client that joins communicators."""

    def session(self, owner: str = "") -> Session:
        """The session with an owner."""
        raise NotImplementedError

    def communicator(
        self,
        name: str,
        size: int,
        rank: int | None = None,
        *,
        owner: str = "",
        lost_after: float = 1.0,
        timeout: float | None = DEFAULT,
    ) -> Pending[Communicator]:
        """Joins a communicator: a fixed number of trainers that exchange values through an owner (see `Communicator`).

        It waits until all members have joined. A name can be used again, for another communicator, by those that have
        left it or whose communicator has ended; trainers that join a complete one begin another of that name.

        Args:
            name: Its name on the owner, 1 to 128 characters.
            size: The number of members, which all give. At most 4096.
            rank: The rank of this member; None for one that is free, in the order of joining.
            owner: Name of the owner; empty for the first. All members name the same.
            lost_after: Seconds that a member may be without a connection before it is lost, if others wait for it. The
                largest of all members counts. One whose stream breaks and opens again in this time loses nothing.
            timeout: Seconds to wait for the other members; None is no limit.

        Raises:
            DeadlineExceededError: Not all members came in time; the message tells how many did.
            InvalidArgumentError: The arguments make no sense, or others gave another size.
            NameConflictError: Another member has the rank.
            OverloadedError: This trainer is a member of 256 communicators.
        """
        return join(self.session(owner), name, size, rank, lost_after, timeout)
