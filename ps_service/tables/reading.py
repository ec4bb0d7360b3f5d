"""What others read of a table besides training it: single rows, all rows, and what has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.tables.answers import PIECE_BYTES, check_begin, ids_to_read, plain, sent
from ps_service.tables.held_changes import ChangesReaders
from ps_service.tables.moving import MovingTable
from ps_service.tables.row_reading import rows_at, values_with, without_rows
from ps_wire.decorators import remote
from ps_wire.errors import InvalidArgumentError
from ps_wire.shown import shown
from ps_wire.tables.versions import RowsVersion

if TYPE_CHECKING:
    from ps_service.tables.shard import Block
    from ps_wire.tables.routing import Routing

CHANGED_BYTES: Final = 32 << 20
"""About the most bytes of changed rows that are read at once, and so as of one moment."""


class ReadTable(MovingTable):
    """The rows of a table that one owner hosts, for readers. A mark is that of this owner in the routing that a request
    goes by; with another one, methods raise `RowsMovedError`."""

    def __init__(self, routing: Routing) -> None:
        super().__init__(routing)
        self._readers: Final = ChangesReaders()

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
            block, gone = self._own(rows_at(self.shard, found.numbers), without_rows(self.shard, found.removed))
        return now, (sent(block, False, codec), gone, found.begin)

    @remote(role="bulk")
    def read_changes_together(
        self, since: Any, begin: int, reader: int | None = None, mark: int = 0, codec: Any = None
    ) -> tuple[tuple[int, int], int, tuple[dict[str, Any], torch.Tensor, int | None] | None]:
        """As `read_changes`, with all rows as of one moment, also those of several answers: that of the call without
        `reader`. The second value is what the next calls give as `reader`. There is None also if too many read in this
        way, or tables have no room for copies of rows that change meanwhile, and for a reader that is not known any
        more, because nothing was asked for in a minute, or that room was needed."""
        version = _version(since)
        check_begin(begin)
        reader = None if reader is None else _number(reader)
        with self.shard.lock:
            self.check_mark(mark)
            number = self._readers.begin(self.shard, version, mark) if reader is None else reader
            held = None if number is None else self._readers.find(number)
            if number is None or held is None or held.next != begin:
                return plain(self.shard.watchers.version), 0, None
            self.check_mark(held.mark)
            self.shard.feed.since(None, 0, 1)  # so that it does not end meanwhile
            block, gone = self._own(*held.piece(max(1, CHANGED_BYTES // (8 + self.shard.row_bytes))))
            if held.next is None:
                self._readers.end(number)
            following = held.next
        return plain(held.version), number, (sent(block, False, codec), gone, following)

    @remote(role="bulk")
    def end_reading(self, reader: int) -> None:
        """Gives up what is kept for a reader of `read_changes_together` that does not read on."""
        self._readers.end(_number(reader))

    def sweep(self) -> None:
        """As `RowsOfTable.sweep`."""
        self._readers.sweep()

    def _own(self, block: Block, gone: torch.Tensor) -> tuple[Block, torch.Tensor]:
        """The rows of a block, and those of some ids, whose slots this owner has."""
        return (self._own_part(block), gone[self.are_own(gone)]) if self.may_have_others else (block, gone)

    def _own_part(self, block: Block) -> Block:
        """The rows of a block whose slots this owner has."""
        own = self.are_own(block["ids"])
        return block if own.all() else {name: each[own] for name, each in block.items()}

    def feed_state(self) -> dict[str, Any] | None:
        """As `Feed.state`."""
        with self.shard.lock:
            return self.shard.feed.state()


def _number(reader: Any) -> int:
    if type(reader) is not int:
        raise InvalidArgumentError(f"a reader of changes is a number, not {shown(reader)}")
    return reader


def _version(plain: Any) -> RowsVersion:
    if not isinstance(plain, tuple | list) or len(plain) != 2 or not all(type(each) is int for each in plain):
        raise InvalidArgumentError(f"a version of rows is an epoch and a number, not {shown(plain)}")
    return RowsVersion(*plain)
