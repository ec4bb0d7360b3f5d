"""What others read of a table besides training it: single rows, all rows, and what has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.tables.answers import PIECE_BYTES, check_begin, ids_to_read, plain, sent
from ps_service.tables.moving import MovingTable
from ps_service.tables.row_reading import rows_at, values_with, without_rows
from ps_wire.decorators import remote
from ps_wire.errors import InvalidArgumentError
from ps_wire.shown import shown
from ps_wire.tables.versions import RowsVersion

if TYPE_CHECKING:
    from ps_service.tables.shard import Block

CHANGED_BYTES: Final = 32 << 20
"""About the most bytes of changed rows that are read at once, and so as of one moment."""


class ReadTable(MovingTable):
    """The rows of a table that one owner hosts, for readers. A mark is that of this owner in the routing that a request
    goes by; with another one, methods raise `RowsMovedError`."""

    @remote(role="reader")
    def count(self, mark: int = 0) -> int:
        """Number of rows."""
        self.check_mark(mark)
        return self.count_own()

    @remote(role="reader")
    def read(self, ids: torch.Tensor, mark: int = 0) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int]]:
        """The rows of those ids, int64 or int32 [n], that have one, [m, dim]; which do, bool [n]; and the version that
        they are of. No row is added, and nothing is counted or noted."""
        ids = ids_to_read(self.shard, ids)
        with self.shard.lock:
            if mark != self.mark:
                self.examine(mark, ids)
            return *values_with(self.shard, ids), plain(self.shard.watchers.version)

    @remote(role="bulk")
    def read_block(
        self, begin: int, state: bool, mark: int = 0, codec: Any = None
    ) -> tuple[dict[str, Any], int | None]:
        """Copies of some rows as `TableShard.copies`, at most a few MiB, and where to go on; None at the end. It begins
        at 0, or what the call before has returned. `state` says whether what the optimizer keeps is wanted; a codec,
        by its name and parameters, how the values are encoded."""
        self.check_mark(mark)
        check_begin(begin)
        block, following = self.shard.copies(begin, max(1, PIECE_BYTES // self.shard.row_bytes))
        return sent(self._own_part(block) if self.may_have_others else block, state, codec), following

    @remote(role="bulk")
    def read_changes(
        self, since: Any, begin: int, mark: int = 0, codec: Any = None
    ) -> tuple[tuple[int, int], tuple[dict[str, Any], torch.Tensor, int | None] | None]:
        """The version of the rows, and what has changed since an earlier one: None if that is not known, and else the
        rows that there are now, as from `read_block` without state, the ids of those that have gone, and where to go
        on; None at the end. Rows that have not changed since may be among them. Those of one answer are as of one
        moment.

        `since` is a version, or None to learn the version alone. It begins at 0, or what the call before has returned.
        """
        version = None if since is None else _version(since)
        check_begin(begin)
        with self.shard.lock:
            self.check_mark(mark)
            found = self.shard.feed.since(version, begin, max(1, CHANGED_BYTES // (8 + self.shard.row_bytes)))
            now = plain(self.shard.watchers.version)
            if found is None:
                return now, None
            block, gone = rows_at(self.shard, found.numbers), without_rows(self.shard, found.removed)
            if self.may_have_others:
                block, gone = self._own_part(block), gone[self.are_own(gone)]
        return now, (sent(block, False, codec), gone, found.begin)

    def _own_part(self, block: Block) -> Block:
        """The rows of a block whose slots this owner has."""
        own = self.are_own(block["ids"])
        return block if own.all() else {name: each[own] for name, each in block.items()}

    def feed_state(self) -> dict[str, Any] | None:
        """As `Feed.state`."""
        with self.shard.lock:
            return self.shard.feed.state()


def _version(plain: Any) -> RowsVersion:
    if not isinstance(plain, tuple | list) or len(plain) != 2 or not all(type(each) is int for each in plain):
        raise InvalidArgumentError(f"a version of rows is an epoch and a number, not {shown(plain)}")
    return RowsVersion(*plain)
