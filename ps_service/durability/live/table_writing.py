"""Writes the rows of tables in files of some blocks each, while they are looked up and updated.

Meanwhile the log gets what rows become, so a block may be of any time after the checkpoint's position: replay sets
later rows again. A block is copied under the lock of its shard. What is the same as in the checkpoint before, as a
hash tells, is linked and not written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import torch
import xxhash

from ps_service.durability.live.reuse import Written
from ps_service.durability.live.slots import Stored, stored
from ps_service.durability.live.tensor_files import FILE_BYTES, Sink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ps_service.durability.live.reuse import Reused
    from ps_service.durability.live.slots import Slot
    from ps_service.durability.live.tensor_files import TensorFiles
    from ps_service.tables.shard import Block, TableShard

BLOCK_ROWS: Final = 16_384
"""Rows that are copied at once."""


class _Group(NamedTuple):
    """Blocks that are in one file, and the number of the row with which the first begins."""

    begin: int
    blocks: list[Block]

    def digest(self) -> bytes:
        """A hash of all that is in them."""
        found = xxhash.xxh3_128()
        for block in self.blocks:
            for name, column in block.items():
                found.update(f"{name} {column.dtype} {tuple(column.shape)}".encode())
                if column.numel():
                    found.update(column.reshape(-1).view(torch.uint8).numpy().data)
        return found.digest()


def write_table(
    object_id: str, shard: TableShard, ids: torch.Tensor, now: int, slot: Slot, files: TensorFiles, reused: Reused
) -> Iterator[None]:
    """Writes the rows of a table, a file at each turn, and puts them into the record: those of the ids, int64 [n], that
    it had in the beginning. Others are added again by replay, and a full table would have no room for all of them. The
    ages of all are those at the time of the beginning, less than 0 where a row was looked up since."""
    slot.message.list.SetInParent()
    for group in _groups(shard, ids.sort().values, now):
        key, digest = (object_id, group.begin), group.digest()
        earlier = reused.earlier.written.get(key)
        if earlier is None or earlier.mark != digest or not reused.link(key, earlier, files):
            if earlier is not None:
                files.names.release(earlier.names())
            sink, first = Sink(files.names), group.begin // BLOCK_ROWS
            values: dict[tuple[int, int], Stored] = {
                (i, 0): stored(block, sink, f"{slot.prefix}/{slot.key}.{first + i}")
                for i, block in enumerate(group.blocks)
            }
            reused.written[key] = Written(digest, files.write(sink.tensors), values)
        for value in reused.written[key].values.values():
            value.put(slot.message.list.items.add(), slot.names)
        yield


def _groups(shard: TableShard, ids: torch.Tensor, now: int) -> Iterator[_Group]:
    """The rows of ascending ids, as copies, with their ages at a time. Nothing else refers to a group once the next one
    is asked for."""
    blocks_of_file = max(1, FILE_BYTES // (shard.row_bytes * BLOCK_ROWS))
    begin: int | None = 0
    while begin is not None:
        group = _Group(begin, [])
        for _ in range(blocks_of_file):
            block, begin = shard.copies(begin, BLOCK_ROWS, now)
            block = _part(block, ids)
            if len(block["ids"]):
                group.blocks.append(block)
            if begin is None:
                break
        if group.blocks:
            yield group


def _part(block: Block, ids: torch.Tensor) -> Block:
    """The rows of a block whose ids are among these, which ascend."""
    if not len(ids):
        return {name: each[:0] for name, each in block.items()}
    there = ids[torch.searchsorted(ids, block["ids"]).clamp_(max=len(ids) - 1)] == block["ids"]
    return block if there.all() else {name: each[there] for name, each in block.items()}
