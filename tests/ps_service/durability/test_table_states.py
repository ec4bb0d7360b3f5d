"""The state of a table is written and read block by block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ps_service.durability import value_files
from ps_service.durability.tensors import TensorReader, TensorWriter
from ps_service.tables.shard import Block
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.checkpoint_pb2 import ObjectRecord
from tests.ps_wire.exact import same

BLOCKS = [{"ids": torch.arange(n), "values": torch.randn(n, 2), "state.sum": torch.randn(n, 1)} for n in (3, 5, 1)]
REST = {"routing": {"version": 3, "of_slot": torch.arange(4)}, "admission": None}


def written(folder: Path, blocks: Iterator[Block]) -> ObjectRecord:
    record, writer = ObjectRecord(), TensorWriter(folder, part_bytes=1)
    value_files.store_table(REST | {"blocks": blocks}, record.state, record.tensors, writer, "items")
    writer.flush()
    return record


def test_no_block_is_asked_for_before_the_one_before_it_is_on_disk(tmp_path: Path) -> None:
    def blocks() -> Iterator[Block]:
        for number, block in enumerate(BLOCKS):
            assert len(list(tmp_path.iterdir())) == 1 + 3 * number
            yield block

    record = written(tmp_path, blocks())
    assert record.tensors[:3] == ["items/routing/of_slot", "items/blocks.0/ids", "items/blocks.0/values"]
    found = value_files.load_table(record.state, record.tensors, TensorReader(tmp_path, os.listdir(tmp_path)))
    assert same(list(found.pop("blocks")), BLOCKS) and same(found, REST)


def test_a_block_is_read_when_its_turn_comes(tmp_path: Path) -> None:
    record = written(tmp_path, iter(BLOCKS))
    (tmp_path / "tensors-00005.safetensors").unlink()
    reader = TensorReader(tmp_path, os.listdir(tmp_path))
    blocks = value_files.load_table(record.state, record.tensors, reader)["blocks"]
    assert same(next(blocks), BLOCKS[0])
    with pytest.raises(InvalidArgumentError, match=r"no tensor 'items/blocks\.1/ids'"):
        next(blocks)
    columns = list(value_files.table_columns(record.state, record.tensors, reader))
    assert [list(each) for each in columns] == [list(each) for each in BLOCKS]
    assert torch.equal(columns[1]["values"](), BLOCKS[1]["values"])
