"""What others read of a table besides training it: single rows, all rows, and what has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.tables.checks import checked_ids
from ps_service.tables.moving import PIECE_BYTES, MovingTable
from ps_service.tables.row_reading import rows_at, values_with, without_rows
from ps_wire.compression.codec import is_description
from ps_wire.compression.registry import check_suitable_for_rows, codec_named, encode
from ps_wire.decorators import remote
from ps_wire.errors import InvalidArgumentError, TooLargeError
from ps_wire.tables.versions import RowsVersion

if TYPE_CHECKING:
    from ps_service.tables.shard import Block

CHANGED_BYTES: Final = 32 << 20
"""About the most bytes of changed rows that are read at once, and so as of one moment."""

MOST_READ: Final = 256 << 20
"""The most bytes of rows that are read by their ids at once."""

_MOST_BEGIN: Final = 1 << 62


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
        if not isinstance(ids, torch.Tensor):
            raise InvalidArgumentError("ids are a tensor")
        ids = checked_ids(ids.long() if ids.dtype is torch.int32 else ids, self.shard.rows)
        if len(ids) * self.shard.row_bytes > MOST_READ:
            raise TooLargeError(f"{len(ids):,} rows of {self} are more than one answer may have: read fewer at once")
        with self.shard.lock:
            if mark != self.mark:
                self.examine(mark, ids)
            return *values_with(self.shard, ids), _plain(self.shard.watchers.version)

    @remote(role="bulk")
    def read_block(
        self, begin: int, state: bool, mark: int = 0, codec: Any = None
    ) -> tuple[dict[str, Any], int | None]:
        """Copies of some rows as `TableShard.copies`, at most a few MiB, and where to go on; None at the end. It begins
        at 0, or what the call before has returned. `state` says whether what the optimizer keeps is wanted; a codec,
        by its name and parameters, how the values are encoded."""
        self.check_mark(mark)
        _check_begin(begin)
        block, following = self.shard.copies(begin, max(1, PIECE_BYTES // self.shard.row_bytes))
        return _sent(self._own_part(block) if self.may_have_others else block, state, codec), following

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
        _check_begin(begin)
        with self.shard.lock:
            self.check_mark(mark)
            found = self.shard.feed.since(version, begin, max(1, CHANGED_BYTES // (8 + self.shard.row_bytes)))
            now = _plain(self.shard.watchers.version)
            if found is None:
                return now, None
            block, gone = rows_at(self.shard, found.numbers), without_rows(self.shard, found.removed)
            if self.may_have_others:
                block, gone = self._own_part(block), gone[self.are_own(gone)]
        return now, (_sent(block, False, codec), gone, found.begin)

    def _own_part(self, block: Block) -> Block:
        """The rows of a block whose slots this owner has."""
        own = self.are_own(block["ids"])
        return block if own.all() else {name: each[own] for name, each in block.items()}

    def feed_state(self) -> dict[str, Any] | None:
        """As `Feed.state`."""
        with self.shard.lock:
            return self.shard.feed.state()


def _sent(block: Block, state: bool, codec: Any) -> dict[str, Any]:
    """A block as it is sent: with what the optimizer keeps if the `state` is wanted, and with encoded values."""
    sent: dict[str, Any] = {name: each for name, each in block.items() if state or not name.startswith("state.")}
    if codec is not None:
        if not isinstance(codec, tuple | list) or len(codec) != 2 or not is_description(*codec):
            raise InvalidArgumentError(f"a codec is given by its name and parameters, not {codec!r}")
        made = codec_named(*codec)
        check_suitable_for_rows(made)
        sent["values"] = encode(made, block["values"])
    return sent


def _check_begin(begin: Any) -> None:
    if type(begin) is not int or not 0 <= begin < _MOST_BEGIN:
        raise InvalidArgumentError(f"rows are read from a number on that the last call has returned, not {begin!r}")


def _plain(version: RowsVersion) -> tuple[int, int]:
    return version.epoch, version.number


def _version(plain: Any) -> RowsVersion:
    if not isinstance(plain, tuple | list) or len(plain) != 2 or not all(type(each) is int for each in plain):
        raise InvalidArgumentError(f"a version of rows is an epoch and a number, not {plain!r}")
    return RowsVersion(*plain)
