"""Tests what a data directory keeps of the owner's place in its group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ps_service.durability.place import Place


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert Place.read(tmp_path) == Place()
    for place in (Place(3), Place(1, "10.0.0.1:50051"), Place(0, "a", {"a": "10.0.0.1:1", "b": "10.0.0.2:1"}, 3)):
        place.write(tmp_path)
        assert Place.read(tmp_path) == place
    assert os.listdir(tmp_path) == ["place.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"number": "x", "keeper": ""}', '{"number": null, "keeper": ""}']
)
def test_what_is_no_place_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "place.json").write_text(content)
    assert Place.read(tmp_path) == Place()


def test_what_is_no_file_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "place.json")
    assert Place.read(tmp_path) == Place()
