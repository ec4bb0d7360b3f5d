"""What the maps of ids have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from ps_wire.errors import TooLargeError

if TYPE_CHECKING:
    from ps_service.tables.id_map.numbering import Numbering


class BaseIdMap:
    """The parts that need no kernel; `IdMap` says what the methods do.

    Args:
        numbering: The numbers of its rows.
    """

    def __init__(self, numbering: Numbering) -> None:
        self._numbering: Final = numbering

    def items(self) -> tuple[torch.Tensor, torch.Tensor]:
        used, freed = self._numbering.counts.tolist()
        in_use = np.ones(used, np.bool_)
        in_use[self._numbering.free[:freed]] = False
        rows = np.flatnonzero(in_use)
        return torch.from_numpy(self._numbering.row_ids[rows]), torch.from_numpy(rows)

    def ids_of(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._numbering.row_ids.take(rows.numpy(), mode="clip"))

    def between(self, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        used, freed = self._numbering.counts.tolist()
        end = max(begin, min(end, used))
        in_use = np.ones(end - begin, np.bool_)
        free = self._numbering.free[:freed]
        in_use[free[(free >= begin) & (free < end)] - begin] = False
        return torch.from_numpy(self._numbering.row_ids[begin:end]), torch.from_numpy(in_use)

    def clear(self) -> None:
        self._numbering.clear()

    @property
    def rows(self) -> int:
        return int(self._numbering.counts[0])

    @property
    def memory(self) -> int:
        return self._numbering.memory

    def __len__(self) -> int:
        used, freed = self._numbering.counts.tolist()
        return int(used - freed)


def too_many(most: int) -> TooLargeError:
    """The error for a map that would have more ids than it may."""
    return TooLargeError(
        f"there would be more than {most:,} rows, the limit of this table; raise it, evict rows, or admit fewer ids"
    )
