"""What a request does with the rows of tables is in its record, so that it can be made again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ps_service.durability.log.storage import RecordSource
from ps_service.durability.log.table_log import RequestRows
from ps_service.tables import compiled
from ps_service.tables.kernels import Grouped
from ps_service.tables.row_changes import RowChange
from ps_service.tables.shard import TableShard
from ps_service.tables.stand_in import AllRows
from ps_wire.codec.payload import PayloadWriter, joined
from ps_wire.tables.options import Adagrad
from ps_wire.v1 import checkpoint_pb2 as pb

DIM = 96
STEPPED = "stepped" if compiled.available() else "images"


def table(object_id: str) -> Any:
    shard = TableShard(DIM, Adagrad(0.1), seed=3)
    parameter = AllRows.of(SimpleNamespace(shard=shard), DIM)  # type: ignore[arg-type]
    return SimpleNamespace(ref=SimpleNamespace(object_id=object_id), parameter=parameter)


def step(covered: Any, ids: torch.Tensor, rows: RequestRows) -> None:
    shard: TableShard = covered.parameter.table.shard
    keys, _, _ = shard.pooled_rows_of(ids, torch.tensor([0, 3]), None, False)
    gradient = shard.gradient(keys, torch.randn(2, DIM), torch.tensor([0, 3]), None, len(ids))
    groups = gradient.pending
    assert isinstance(groups, Grouped)
    shard.update(groups)
    rows.steps([(covered, 0, gradient)])


@pytest.mark.parametrize("needs_images", [False, True])
@pytest.mark.parametrize("stepped", [["a"], ["b", "a"], ["a", "a"], ["b", "a", "b"]])
def test_steps_of_a_record_give_the_same_rows(stepped: list[str], needs_images: bool) -> None:
    tables, record, payload = {name: table(name) for name in "ab"}, pb.LogRecord(), PayloadWriter()
    rows = RequestRows({}, record, payload, lambda: needs_images)
    ids = torch.arange(20)
    for each in stepped:
        step(tables[each], ids, rows)
    rows.finish()
    rows.end()
    kinds = [each.rows.WhichOneof("change") for each in record.effects]
    assert kinds == ["images" if needs_images or len(set(stepped)) < len(stepped) else STEPPED] * len(stepped)
    source = RecordSource(joined(payload.chunks, payload.nbytes))
    for name, covered in tables.items():
        again = TableShard(DIM, Adagrad(0.1), seed=3)
        again.look_up(ids)
        for effect in record.effects:
            if effect.rows.object_id == name:
                kind: Any = effect.rows.WhichOneof("change")
                again.redo(RowChange(kind, effect.rows.time, source.load(getattr(effect.rows, kind))))
        assert torch.equal(again.look_up(ids), covered.parameter.table.shard.look_up(ids))
