"""Tests that only files are opened: what else has the name of one is refused at once."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from ps_wire.regular_files import NotRegularError, open_regular


def test_a_file_and_a_link_to_one_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"numbers")
    (tmp_path / "link").symlink_to("file")
    for name in "file", "link":
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"numbers"


def test_a_file_that_is_missing_is_told_as_ever(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
    found = [tmp_path / "fifo", tmp_path / "folder", tmp_path / "socket", Path("/dev/zero")]
    for path, kind in zip(found, ["a FIFO", "a directory", "a socket", "a device"], strict=True):
        with pytest.raises(NotRegularError, match=f"{path} is {kind}, and not a file"):
            open_regular(path)


def test_a_fifo_that_takes_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch()
    found = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(Path, "stat", lambda _: found)
    with pytest.raises(NotRegularError, match="a FIFO"):
        open_regular(path)
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the directory, or one that an earlier test has left
            assert os.readlink(f"/proc/self/fd/{each}") != str(path)
