"""The names under which owners list what tables are made of, and of what is called on these."""

from __future__ import annotations

from typing import Final

SHARD: Final = "tables.Shard"
"""The class of the rows of one table that one owner holds."""

OPTIMIZER: Final = "tables.RowOptimizer"
"""The class of optimizers of such rows."""

ROWS: Final = "rows"
"""The name of the parameter that stands for all rows of a shard."""

BLOCKS: Final = "blocks"
"""The entry of the state of a shard that has its rows, in blocks."""

EVICT: Final = "evict"

CHANGES_ROWS: Final = frozenset(("begin_restore", "clear", EVICT, "put", "remove"))
"""Methods of a table that change rows, besides look-ups."""
