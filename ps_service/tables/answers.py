"""What readers of rows ask for, checked, and how they are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.tables.checks import checked_ids
from ps_wire.compression.codec import is_description
from ps_wire.compression.registry import check_suitable_for_rows, codec_named, encode
from ps_wire.errors import InvalidArgumentError, TooLargeError
from ps_wire.shown import shown

if TYPE_CHECKING:
    from ps_service.tables.shard import Block, TableShard
    from ps_wire.tables.versions import RowsVersion

PIECE_BYTES: Final = 4 << 20
"""About the most bytes of rows that are read at once."""

MOST_READ: Final = 256 << 20
"""The most bytes of rows that are read by their ids at once."""

_MOST_BEGIN: Final = 1 << 62


def sent(block: Block, state: bool, codec: Any) -> dict[str, Any]:
    """A block as it is sent: with what the optimizer keeps if the `state` is wanted, and with encoded values."""
    parts: dict[str, Any] = {name: each for name, each in block.items() if state or not name.startswith("state.")}
    if codec is not None:
        if not isinstance(codec, tuple | list) or len(codec) != 2 or not is_description(*codec):
            raise InvalidArgumentError(f"a codec is given by its name and parameters, not {shown(codec)}")
        made = codec_named(*codec)
        check_suitable_for_rows(made)
        parts["values"] = encode(made, block["values"])
    return parts


def ids_to_read(shard: TableShard, ids: Any) -> torch.Tensor:
    """Ids of rows to read, int64 [n]. Raises `InvalidArgumentError` if they are none, and `TooLargeError`."""
    if not isinstance(ids, torch.Tensor):
        raise InvalidArgumentError("ids are a tensor")
    checked = checked_ids(ids.long() if ids.dtype is torch.int32 else ids, shard.rows)
    if len(checked) * shard.row_bytes > MOST_READ:
        raise TooLargeError(f"{len(checked):,} rows are more than one answer may have: read fewer at once")
    return checked


def check_begin(begin: Any) -> None:
    """Raises `InvalidArgumentError` for what is no place to read rows from."""
    if type(begin) is not int or not 0 <= begin < _MOST_BEGIN:
        raise InvalidArgumentError(
            f"rows are read from a number on that the last call has returned, not {shown(begin)}"
        )


def plain(version: RowsVersion) -> tuple[int, int]:
    """A version as it is sent."""
    return version.epoch, version.number
