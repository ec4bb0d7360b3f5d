"""A map from ids to rows, by whichever implementation is available."""

from __future__ import annotations

from typing import Protocol

import torch

from ps_service.tables import compiled
from ps_service.tables.id_map.direct_layout import MOST_IDS, MOST_SHARES
from ps_service.tables.id_map.numpy_direct_map import NumpyDirectMap
from ps_service.tables.id_map.numpy_map import NumpyIdMap


class IdMap(Protocol):
    """A map from any int64 id to the number of a row.

    Ids get the lowest rows that were never used, in the order in which they are first added, after the rows of removed
    ids, of which the last freed comes first. One thread may change a map at a time, and none may read it then.

    Attributes:
        implementation: "numba" or "torch", which is numpy here.
    """

    implementation: str

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids, int64 [n]; -1 where an id has none."""

    def find_or_add(self, ids: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of ids, adding those that are missing.

        Args:
            ids: int64 [n]; may repeat.
            most: How many ids the map may have afterwards.

        Returns:
            The rows, int64 [n], and which of the positions added an id, bool [n].

        Raises:
            TooLargeError: There would be more than `most` ids. The map is as before.
        """

    def remove(self, ids: torch.Tensor) -> torch.Tensor:
        """Removes ids, which may repeat and may be missing. Returns the rows that are free now, int64."""

    def items(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All ids and their rows, both int64 [len], in the order of the rows."""

    def ids_of(self, rows: torch.Tensor) -> torch.Tensor:
        """The ids of rows that are in use."""

    def between(self, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids of the rows from `begin` to before `end`, int64 [n], as a view, and which of the rows are in use."""

    def clear(self) -> None:
        """Removes all ids."""

    @property
    def rows(self) -> int:
        """How many rows were ever in use: one more than the largest number of a row."""

    @property
    def memory(self) -> int:
        """Bytes in use."""

    def __len__(self) -> int: ...


def make_id_map(capacity: int, implementation: str | None = None, ids: int | None = None, shares: int = 1) -> IdMap:
    """An empty map.

    An array with an entry for each id is faster than a hash table. It is taken where it needs no more memory, too.

    Args:
        capacity: The most rows it will ever have.
        implementation: "numba" or "torch", which is numpy here; None for the first that is installed.
        ids: Their number if all ids are below it, and none negative; None for any ids.
        shares: Among how many maps those ids are divided.
    """
    entries = ids if ids is not None and ids <= MOST_IDS and shares <= MOST_SHARES else None
    if implementation == "torch" or (implementation is None and not compiled.available()):
        return NumpyIdMap(capacity) if entries is None else NumpyDirectMap(entries, capacity)
    from ps_service.tables.id_map.numba_direct_map import NumbaDirectMap
    from ps_service.tables.id_map.numba_map import NumbaIdMap

    return NumbaIdMap(capacity) if entries is None else NumbaDirectMap(entries, capacity)
