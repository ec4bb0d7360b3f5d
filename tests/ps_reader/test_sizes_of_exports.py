"""Exported tables take no more files and memory than their rows need."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ps_reader.test_exported_tables import worlds
from trainer_client.serving import exported_table
from trainer_client.serving.export_folder import Folder


def test_changes_that_come_faster_than_they_are_read_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported_table, "PART_BYTES", 128)  # eight rows
    monkeypatch.setattr(exported_table, "LEAST_CHANGED", 4)
    with worlds() as world:
        ids = list(range(8))
        world.do("whole", ids, [])
        most = 0
        for _ in range(50):
            world.do("piece", ids, [])
            most = max(most, len(list(world.path.glob("items-*"))))
        assert most <= 6
        world.do("whole", ids[:2], [7])
        world.read()


@pytest.mark.parametrize("is_first", [True, False])
def test_what_changes_while_all_rows_are_read_does_not_pile_up(monkeypatch: pytest.MonkeyPatch, is_first: bool) -> None:
    monkeypatch.setattr(exported_table, "PART_BYTES", 128)  # eight rows
    monkeypatch.setattr(exported_table, "LEAST_CHANGED", 4)
    with worlds() as world:
        ids = list(range(16))
        if not is_first:
            world.do("whole", ids, [])
            world.do("reset", [], [])
        before = len(list(world.path.glob("items-*")))
        most = 0
        for number in range(50):
            world.do("piece", ids[:8], [20, 21])
            world.do("piece", ids[8:], [number % 8])
            most = max(most, len(list(world.path.glob("items-*"))))
        assert most <= before + 6
        world.do("whole", ids[:2], [7])
        world.read()
        assert len(list(world.path.glob("items-*"))) <= before + 6


def test_a_table_that_shrinks_while_all_rows_are_read_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported_table, "PART_BYTES", 16)
    monkeypatch.setattr(exported_table, "LEAST_CHANGED", 1)
    with worlds() as world:
        for _ in range(9):
            world.do("piece", [1, 2], [])
            world.do("piece", [], [1, 2])
        world.do("whole", [], [])
        world.read()


def test_what_has_changed_is_joined_into_parts_of_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    written, write = [], Folder.write_rows

    def note(self: Folder, name: str, part: Any) -> str:
        written.append(sum(each.nbytes for each in part.values()))
        return write(self, name, part)

    monkeypatch.setattr(Folder, "write_rows", note)
    monkeypatch.setattr(exported_table, "PART_BYTES", 64)  # four rows
    monkeypatch.setattr(exported_table, "MOST_PARTS", 2)
    with worlds() as world:
        world.do("whole", list(range(4)), [])
        for number in range(40):
            world.do("whole", [number], [])
            world.read()
        assert world.table.files is not None and len(world.table.files.parts) <= 1 + 10 + 3
        assert max(written) <= 64
        monkeypatch.setattr(exported_table, "LEAST_CHANGED", 2)
        world.do("whole", list(range(4)), [])
        assert world.table.files.base == len(world.table.files.parts) == 10, "all rows are written anew"
        world.read()
        assert max(written) <= 64
        world.do("whole", [], list(range(40)))
        assert world.table.files.base == 1, "none is left"
        world.read()
