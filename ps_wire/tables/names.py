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

IS_QUIET: Final = "is_quiet"
"""The method that says whether no pass uses the rows of a table, for which it needs to know the passes."""

USED_WITH: Final = "used_with"
"""The method that says what else the optimizer of a table has, for which it needs to know the owner's objects."""

APPLIED_STEPS: Final = "applied_steps"
"""The method that says which steps of passes that may be run again were applied, for which it needs to know them."""

AGREE: Final = "agree"
"""The method with which an owner may get rows, to which it then has not applied what it has applied to others."""

_MOVES_ROWS: Final = (AGREE, "begin_arrival", "stage", "release", "purge", "take_applied")

CHANGES_ROWS: Final = frozenset(("begin_restore", "clear", EVICT, "put", "remove", *_MOVES_ROWS))
"""Methods of a table that change rows, or which it has, besides look-ups."""
