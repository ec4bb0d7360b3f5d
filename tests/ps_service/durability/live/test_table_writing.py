"""The rows of a table are written in files of some blocks, while they are looked up and updated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ps_service.durability import value_files
from ps_service.durability.live import table_writing
from ps_service.durability.live.reuse import Earlier, Reused
from ps_service.durability.live.slots import Slot
from ps_service.durability.live.table_writing import write_table
from ps_service.durability.live.tensor_files import Names, TensorFiles
from ps_service.durability.log.disk import Disk
from ps_service.durability.manifest import described
from ps_service.durability.tensors import TensorReader
from ps_service.tables.naming import ids_in
from ps_service.tables.shard import TableShard
from ps_wire.tables.options import Adagrad
from ps_wire.v1.checkpoint_pb2 import ObjectRecord

ROWS = 1000


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_writing, "BLOCK_ROWS", 64)
    monkeypatch.setattr(table_writing, "FILE_BYTES", 64 * 40)


def shard_with(rows: int) -> TableShard:
    shard = TableShard(4, Adagrad(lr=0.1), seed=1)
    if rows:
        shard.look_up(torch.arange(rows))
    return shard


class Written:
    """A table that is written into a folder, turn by turn."""

    def __init__(self, folder: Path, shard: TableShard, earlier: Earlier | None = None) -> None:
        folder.mkdir()
        self.folder = folder
        self.record = ObjectRecord()
        self.reused = Reused(earlier or Earlier())
        names = Names(name for each in self.reused.earlier.written.values() for name in each.names())
        item = self.record.state.dict.items.add()
        item.key.text = "blocks"
        slot = Slot(item.value, self.record.tensors, "items", "blocks")
        files = TensorFiles(folder, Disk(), names)
        self.turns = write_table("1" * 32, shard, ids_in(shard), shard.now(), slot, files, self.reused)

    def loaded(self) -> TableShard:
        """Another shard with what was written."""
        files = [path.name for path in self.folder.iterdir()]
        found = shard_with(0)
        reader = TensorReader(self.folder, files)
        found.load(value_files.load_table(self.record.state, self.record.tensors, reader)["blocks"])
        return found

    def earlier(self) -> Earlier:
        """What the next one may use."""
        files = {path.name: described(path) or {} for path in self.folder.iterdir()}
        return Earlier(self.folder, files, self.reused.written)


def same(one: TableShard, other: TableShard) -> bool:
    ids = torch.arange(2 * ROWS)
    return one.size == other.size and torch.equal(one.look_up(ids, add=False), other.look_up(ids, add=False))


def new(i: int) -> dict[str, torch.Tensor]:
    ids = torch.arange(0, ROWS, 7) + i
    return {"ids": ids, "values": torch.full((len(ids), 4), float(i))}


def test_it_is_written_as_it_is(tmp_path: Path) -> None:
    shard = shard_with(ROWS)
    shard.remove(torch.arange(100, 200))
    written = Written(tmp_path / "1", shard)
    assert len(list(written.turns)) > 10
    assert same(written.loaded(), shard)


def test_an_empty_one_has_no_blocks(tmp_path: Path) -> None:
    written = Written(tmp_path / "1", shard_with(0))
    assert not list(written.turns)
    assert not written.loaded().size


def test_rows_that_are_put_and_removed_meanwhile_are_set_again(tmp_path: Path) -> None:
    shard, events = shard_with(ROWS), []
    written = Written(tmp_path / "1", shard)
    for i, _ in enumerate(written.turns):
        shard.put(new(i))
        gone = torch.arange(50 * i, 50 * i + 20)
        shard.remove(gone)
        events.append((new(i), gone))
    found = written.loaded()
    for block, gone in events:
        found.put(block)
        found.remove(gone)
    assert len(events) > 10 and same(found, shard)


def test_blocks_that_have_not_changed_are_linked(tmp_path: Path) -> None:
    shard = shard_with(ROWS)
    first = Written(tmp_path / "1", shard)
    list(first.turns)
    shard.put({"ids": torch.tensor([3, 500]), "values": torch.zeros(2, 4)})
    second = Written(tmp_path / "2", shard, first.earlier())
    list(second.turns)
    own = [path for path in second.folder.iterdir() if path.stat().st_nlink == 1]
    assert len(own) == 2 < len(list(second.folder.iterdir()))
    assert same(second.loaded(), shard)
    third = Written(tmp_path / "3", shard, second.earlier())
    list(third.turns)
    assert not [path for path in third.folder.iterdir() if path.stat().st_nlink == 1]
    assert same(third.loaded(), shard)
