"""Tests of the files that rows are exported into."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ps_wire.errors import InvalidArgumentError
from trainer_client.tables.files import PartsReader, PartsWriter


@pytest.mark.parametrize("format", ["safetensors", "parquet"])
def test_parts_have_the_rows_in_their_order(tmp_path: Path, format: Any) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow")
    writer = PartsWriter(tmp_path / "new" / "rows", format, "items", 2, torch.float32, "sgd", part_bytes=200)
    writer.begin()
    ids = torch.arange(100) - 50
    for some in ids.split(7):
        writer.add(
            {
                "ids": some,
                "values": torch.stack([some, -some], 1).float(),
                "age": some * 3,
                "state.v": some[:, None] * 0.5,
            }
        )
    assert writer.finish() == 100
    listed = json.loads((tmp_path / "new" / "rows" / "table.json").read_text())
    assert (listed["rows"], len(listed["parts"]), listed["parts"][0]["rows"]) == (100, 8, 14)
    assert not list((tmp_path / "new" / "rows").glob(".*"))
    reader = PartsReader(tmp_path / "new" / "rows")
    reader.check(2, "sgd")
    blocks = list(reader.blocks(3, state=True))
    assert max(len(each["ids"]) for each in blocks) == 3
    whole = {name: torch.cat([each[name] for each in blocks]) for name in blocks[0]}
    assert torch.equal(whole["ids"], ids) and torch.equal(whole["age"], ids * 3)
    assert torch.equal(whole["values"], torch.stack([ids, -ids], 1).float())
    assert torch.equal(whole["state.v"], ids[:, None] * 0.5)
    assert all("state.v" not in each for each in reader.blocks(50, state=False))


@pytest.mark.parametrize("name", ["table.json", "rows-00001.safetensors"])
@pytest.mark.parametrize(("kind", "make"), [("a FIFO", os.mkfifo), ("a directory", os.mkdir)])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, kind: str, make: Callable[[Path], None]) -> None:
    writer = PartsWriter(tmp_path / "rows", "safetensors", "items", 2, torch.float32, "")
    writer.begin()
    writer.add({"ids": torch.arange(3), "values": torch.zeros(3, 2)})
    assert writer.finish() == 3
    (tmp_path / "rows" / name).unlink()
    make(tmp_path / "rows" / name)
    with pytest.raises(InvalidArgumentError, match=f"{name} is {kind}, and not a file"):
        PartsReader(tmp_path / "rows").check(2, None)


def begun(folder: Path) -> PartsWriter:
    """An export into a folder that has written a part and half of another one."""
    writer = PartsWriter(folder, "safetensors", "items", 2, torch.float32, "", part_bytes=40)
    writer.begin()
    writer.add({"ids": torch.arange(3), "values": torch.zeros(3, 2)})
    (folder / ".rows-00002.safetensors").write_bytes(b"half")
    return writer


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_export_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    writer = begun(tmp_path / "new" / "rows")
    assert names(tmp_path / "new" / "rows") == [".rows-00002.safetensors", ".unfinished", "rows-00001.safetensors"]
    writer.discard()
    assert names(tmp_path) == [], "also the folders that it has made"
    writer.add({"ids": torch.arange(30), "values": torch.zeros(30, 2)})
    writer.begin()
    writer.finish()
    writer.discard()
    assert names(tmp_path) == [], "what its thread does late"


def test_an_export_that_is_given_up_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    begun(tmp_path / "there").discard()
    assert names(tmp_path / "there") == []
    writer = begun(tmp_path / "there" / "new" / "rows")
    (tmp_path / "there" / "new" / "notes").touch()
    writer.discard()
    assert names(tmp_path / "there") == ["new"] and names(tmp_path / "there" / "new") == ["notes"]


def test_an_export_that_has_finished_is_not_given_up(tmp_path: Path) -> None:
    writer = begun(tmp_path / "rows")
    (tmp_path / "rows" / ".rows-00002.safetensors").unlink()
    assert writer.finish() == 3
    writer.discard()
    assert names(tmp_path / "rows") == ["rows-00001.safetensors", "table.json"]


def test_what_a_killed_export_has_left_is_replaced(tmp_path: Path) -> None:
    os.close(begun(tmp_path / "rows")._target._descriptor)  # as the end of its process does
    assert names(tmp_path / "rows") == [".rows-00002.safetensors", ".unfinished", "rows-00001.safetensors"]
    with pytest.raises(InvalidArgumentError, match=r"rows has no table\.json: its export goes on, or its program was"):
        PartsReader(tmp_path / "rows")
    (tmp_path / "rows" / "notes").touch()
    with pytest.raises(InvalidArgumentError, match="rows has notes, which is of no export"):
        begun(tmp_path / "rows")
    (tmp_path / "rows" / "notes").unlink()
    writer = PartsWriter(tmp_path / "rows", "safetensors", "items", 2, torch.float32, "")
    writer.begin()
    assert names(tmp_path / "rows") == [".unfinished"]
    assert writer.finish() == 0
    assert names(tmp_path / "rows") == ["table.json"]


def test_an_export_goes_to_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    killed = begun(tmp_path / "rows")
    with pytest.raises(InvalidArgumentError, match="another export writes into"):
        begun(tmp_path / "rows")
    killed.discard()
    (tmp_path / "rows").mkdir()
    writer = PartsWriter(tmp_path / "rows", "safetensors", "items", 2, torch.float32, "")
    writer.begin()
    assert writer.finish() == 0 and names(tmp_path / "rows") == ["table.json"]


def test_two_exports_do_not_write_into_one_folder(tmp_path: Path) -> None:
    first = begun(tmp_path / "rows")
    second = PartsWriter(tmp_path / "rows", "safetensors", "items", 2, torch.float32, "")
    with pytest.raises(InvalidArgumentError, match=r"another export writes into .*rows: wait for it"):
        second.begin()
    second.discard()
    assert "rows-00001.safetensors" in names(tmp_path / "rows")
    first.discard()
    for taken in "notes", "table.json":
        (tmp_path / taken).mkdir()
        (tmp_path / taken / taken).touch()
        with pytest.raises(InvalidArgumentError, match=f"{taken} is not empty"):
            begun(tmp_path / taken)
        assert names(tmp_path / taken) == [taken]


def test_a_table_without_rows(tmp_path: Path) -> None:
    writer = PartsWriter(tmp_path / "rows", "safetensors", "items", 2, torch.float32, "")
    writer.begin()
    assert writer.finish() == 0
    reader = PartsReader(tmp_path / "rows")
    reader.check(2, "sgd")
    assert list(reader.blocks(10, state=True)) == []
