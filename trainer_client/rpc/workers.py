"""Name and number of a member of a group."""

from __future__ import annotations

from dataclasses import dataclass

from ps_wire.codec.records import by_value


@by_value
@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A member of a group.

    Attributes:
        name: Its name.
        id: Its rank, or the number that the directory gave it.
    """

    name: str
    id: int
