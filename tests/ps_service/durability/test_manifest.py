"""Tests that a checkpoint is read only if it is what was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ps_service.durability.manifest import FORMAT, NAME, DamagedError, Manifest, described


def written(folder: Path, content: bytes = b"numbers") -> Manifest:
    (folder / "state.pb").write_bytes(content)
    files = {"state.pb": described(folder / "state.pb") or {}}
    manifest = Manifest("ps0", ("new", "old"), "2026-01-01T00:00:00+00:00", "0.1.0", files, [{"name": "net"}], [])
    (folder / NAME).write_bytes(manifest.to_bytes())
    return manifest


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    assert json.loads((tmp_path / NAME).read_bytes())["format"] == FORMAT


@pytest.mark.parametrize("content", [b"numbera", b"numbers ", b""])
def test_a_file_that_has_changed_is_damaged(tmp_path: Path, content: bytes) -> None:
    written(tmp_path)
    (tmp_path / "state.pb").write_bytes(content)
    with pytest.raises(DamagedError, match=r"state\.pb is damaged or missing"):
        Manifest.read(tmp_path)


def test_a_file_that_is_missing_is_damaged(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "state.pb").unlink()
    with pytest.raises(DamagedError, match=r"state\.pb"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"blake2b": "0"}', b"\xff"])
def test_a_manifest_that_is_no_manifest_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(DamagedError, match=NAME):
        Manifest.read(tmp_path)


def test_a_manifest_in_which_a_name_was_changed_is_damaged(tmp_path: Path) -> None:
    written(tmp_path)
    content = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(content.replace(b'"ps0"', b'"ps1"'))
    with pytest.raises(DamagedError, match=NAME):
        Manifest.read(tmp_path)


def test_a_file_is_described_by_its_length_and_hash(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"abc")
    (tmp_path / "c").write_bytes(b"abd")
    a, b, c = (described(tmp_path / name) for name in "abc")
    assert a == b != c
    assert a is not None and a["bytes"] == 3
    assert described(tmp_path / "d") is None
