"""Members of a group, as its directory knows them."""

from __future__ import annotations

from typing import NamedTuple


class MemberEntry(NamedTuple):
    """One member.

    Attributes:
        name: Its name.
        address: Host and port where its owner listens.
        id: The rank it asked for, or the lowest number that was free.
        session: The session that entered it.
        is_owner: Whether it is an owner that serves trainers, and no program that has joined by itself.
    """

    name: str
    address: str
    id: int
    session: bytes
    is_owner: bool = False

    def __str__(self) -> str:
        return f"{self.name!r} (rank {self.id})"
