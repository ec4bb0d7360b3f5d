"""From ids to rows."""

from __future__ import annotations

from ps_service.tables import compiled
from ps_service.tables.id_map.direct_map import MOST_IDS, MOST_SHARES, NumpyDirectMap
from ps_service.tables.id_map.hashed_map import MOST_ROWS, NumpyHashedMap
from ps_service.tables.id_map.id_map import IdMap

__all__ = ["MOST_ROWS", "IdMap", "make_id_map"]


def make_id_map(capacity: int, implementation: str | None = None, ids: int | None = None, shares: int = 1) -> IdMap:
    """An empty map for at most `capacity` rows, by "numba" or "torch", which is numpy here; None for what is installed.

    An array with an entry for each id is faster than a hash table. It is taken where it needs no more memory, too: for
    ids that are all below the number `ids`, and none negative, if they are divided among few maps, `shares`.
    """
    entries = ids if ids is not None and ids <= MOST_IDS and shares <= MOST_SHARES else None
    if implementation == "torch" or (implementation is None and not compiled.available()):
        return NumpyHashedMap(capacity) if entries is None else NumpyDirectMap(entries, capacity)
    from ps_service.tables.id_map.numba_maps import NumbaDirectMap, NumbaHashedMap

    return NumbaHashedMap(capacity) if entries is None else NumbaDirectMap(entries, capacity)
