"""What a snapshot has of one object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ps_wire.v1.operations_pb2 import SnapshotPart


class SnapshotMark(NamedTuple):
    """A snapshot: its name, an id that no other one has, also of the same name, and all that belongs to it, on all
    owners."""

    name: str
    id: bytes
    parts: Sequence[SnapshotPart]


class Pinned(ABC):
    """An object as it was at one moment. It cannot be changed, and ends with the process of its owner.

    `elements` and `nbytes` are the numbers that it has, and what it takes of the memory besides the object itself.
    """

    elements: int

    def __init__(self, snapshot: SnapshotMark) -> None:
        self.snapshot: Final = snapshot

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """See the class."""
