"""Tests of a log whose files, or whose folder, somebody removes while it is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ps_service.durability.log import log as log_module
from ps_service.durability.log.log import Log, LogError
from tests.ps_service.durability.log.test_fenced_log import opened


def remove_and_make(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def remove_files(folder: Path) -> None:
    for path in folder.glob("log-*"):
        path.unlink()


def replace_files(folder: Path) -> None:
    """As a backup that is unpacked over it does."""
    for path in folder.glob("log-*"):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)


WAYS = pytest.mark.parametrize("remove", [shutil.rmtree, remove_and_make, rename, remove_files, replace_files])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "data").mkdir()
    return made


@WAYS
@pytest.mark.parametrize("is_new", [True, False])
def test_nothing_is_told_to_be_on_the_disk(folder: Path, remove: Callable[[Path], None], is_new: bool) -> None:
    told: list[LogError | None] = []
    with closing(opened(folder)) as log:
        position = log.append(b"kept")
        log.sync()
        remove(folder)
        if is_new:
            log.when_synced(log.append(b"lost"), told.append)
        with pytest.raises(LogError, match=r"log in .* cannot be written: .* was removed or renamed"):
            log.sync()
        assert (log.synced, log.has_failed, [type(each) for each in told]) == (position, True, [LogError] * is_new)
        with pytest.raises(LogError, match="was removed"):
            log.append(b"more")


@WAYS
def test_no_record_is_appended_a_second_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch, remove: Callable[[Path], None]
) -> None:
    with closing(opened(folder, interval=3600)) as log:
        log.append(b"first")
        remove(folder)
        now = log_module._clock()
        monkeypatch.setattr(log_module, "_clock", lambda: now + 2)
        with pytest.raises(LogError, match="was removed"):
            log.append(b"late")
        assert log.has_failed


def test_a_log_whose_files_the_owner_itself_frees_goes_on(folder: Path) -> None:
    with closing(opened(folder)) as log:
        for _ in range(20):
            log.append(bytes(3000))
            log.sync()
            log.cut(log.end)
        end = log.end
    with closing(Log(folder, None, segment_bytes=4096)) as log:
        assert [each.end for each in log.read(end - 3072)] == [end]
