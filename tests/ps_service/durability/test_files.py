"""Tests the files of a checkpoint: written once, readable by their user only, and renamed when they are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from ps_service.durability.files import publish, sync_file, sync_folder, write_file


def test_a_file_has_its_content_and_belongs_to_its_user(tmp_path: Path) -> None:
    write_file(tmp_path / "state", b"numbers")
    assert (tmp_path / "state").read_bytes() == b"numbers"
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    write_file(tmp_path / "state", b"first")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "state", b"second")
    assert (tmp_path / "state").read_bytes() == b"first"


def test_a_folder_gets_its_name(tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    write_file(tmp_path / "half" / "state", b"numbers")
    publish(tmp_path / "half", tmp_path / "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
    assert (tmp_path / "whole" / "state").read_bytes() == b"numbers"


def test_a_name_that_is_taken_is_not_given_again(tmp_path: Path) -> None:
    for name in ("half", "whole"):
        (tmp_path / name).mkdir()
    write_file(tmp_path / "whole" / "state", b"first")
    with pytest.raises(OSError, match="not empty"):
        publish(tmp_path / "half", tmp_path / "whole")
    assert (tmp_path / "whole" / "state").read_bytes() == b"first"


def test_a_missing_file_cannot_be_synced(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_file(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        sync_folder(tmp_path / "file")
