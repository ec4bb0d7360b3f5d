"""The files of the log are used again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ps_service.durability.log.log import Log, LogError
from tests.ps_service.durability.log.losing_disk import FailingDisk
from tests.ps_service.durability.log.test_log import SEGMENT, contents, opened


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with closing(opened(tmp_path)) as made:
        yield made


def test_all_files_that_are_cut_off_are_used_again_and_those_that_are_not_needed_any_more_go(
    tmp_path: Path, log: Log
) -> None:
    def round_of(records: int) -> set[int]:
        for _ in range(records):
            log.append(b"step", [bytes(3000)])
        files = {path.stat().st_ino for path in tmp_path.iterdir()}
        log.sync()
        log.cut(log.end)
        return files

    round_of(40)
    files = round_of(40)
    assert len(files) > 30
    assert [round_of(40) for _ in range(3)] == [files] * 3
    for _ in range(2):
        round_of(1)
    assert len(list(tmp_path.iterdir())) < 8


def test_files_of_large_records_are_used_again(tmp_path: Path, log: Log) -> None:
    for size, count in ((3 * SEGMENT, 2), (100 * SEGMENT, 3)):  # the largest is not kept
        for _ in range(4):
            log.check(size + 100)
            log.append(b"large", [bytes(size)])
            log.sync()
            log.cut(log.end)
            assert contents(tmp_path, log.end - size - 64)[0][0] == b"large"
        assert sum(path.stat().st_size > 2 * SEGMENT for path in tmp_path.iterdir()) == count


def test_a_small_record_has_room_where_a_large_first_one_has_none(tmp_path: Path) -> None:
    disk = FailingDisk()
    with closing(opened(tmp_path, disk=disk)) as log:
        disk.full = True
        with pytest.raises(LogError):
            log.append(b"large", [bytes(3 * SEGMENT)])
        log.append(b"small")
        disk.full = False
        log.append(b"large", [bytes(3 * SEGMENT)])
    assert [message for message, _ in contents(tmp_path)] == [b"small", b"large"]
