"""What a snapshot has of one object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ps_wire.v1.operations_pb2 import SnapshotPart


class Pinned:
    """An object as it was at one moment. It cannot be changed, and ends with the process of its owner.

    `snapshot` is the name of the snapshot, and `parts` has all that belongs to it, on all owners. `elements` and
    `nbytes` are the numbers that it has, and what it takes of the memory besides the object itself.
    """

    elements: int

    def __init__(self, snapshot: str, parts: Sequence[SnapshotPart]) -> None:
        self.snapshot: Final = snapshot
        self.parts: Final = parts

    @property
    def nbytes(self) -> int:
        """See the class."""
        raise NotImplementedError
