"""Tests of two logs in one folder, one of an owner that was frozen: what it writes later does not count.

Every order of what the frozen one has begun and does later ends in the same: the records are those that the first one
had told to be on the disk, and those of the second.
"""

from __future__ import annotations

import os
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ps_service.durability.epoch import Epoch, FencedError
from ps_service.durability.log import log as log_module
from ps_service.durability.log.log import Log, LogError

SEGMENT = 4096


def opened(folder: Path, interval: float | None = None, begin: int = 0) -> Log:
    """A log of a new epoch that goes on where the records in the folder end; they begin at a position."""
    log = Log(folder, interval, segment_bytes=SEGMENT, epoch=Epoch(folder))
    for _ in log.read(begin):
        pass
    log.open(log.end)
    return log


def texts(folder: Path) -> list[bytes]:
    return [each.message for each in Log(folder, None, segment_bytes=SEGMENT).read(0)]


@pytest.mark.parametrize("size", [100, 1500, 5000])
@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("how", ["append", "sync", "check"])
def test_what_a_fenced_one_does_later_harms_nothing(tmp_path: Path, size: int, count: int, how: str) -> None:
    with closing(opened(tmp_path)) as first:
        first.append(b"first " * 10)
        first.sync()
        with closing(opened(tmp_path)) as second:
            second.append(b"second " * 10)
            second.sync()
            for _ in range(count):
                # Not checked at once: the last look was a moment ago.
                with suppress(LogError):
                    first.append(b"x" * size)
                with suppress(OSError):
                    first.sync() if how == "sync" else first.check(size) if how == "check" else None
                second.append(b"y" * size)
            with pytest.raises(LogError, match="another owner has taken"):
                first.sync()
            assert first.has_failed
            second.sync()
            second.cut(0)
        expected = [b"first " * 10, b"second " * 10, *[b"y" * size] * count]
        assert texts(tmp_path) == expected
        with closing(opened(tmp_path)) as third:
            third.append(b"third")
            with suppress(OSError):
                first.append(b"late")
        assert texts(tmp_path) == [*expected, b"third"]


@pytest.mark.parametrize("before", [[b"first"], []])
def test_a_file_that_a_frozen_one_is_about_to_name_gets_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: list[bytes]
) -> None:
    with closing(opened(tmp_path)) as first:
        for text in before:
            first.append(text)
        first.sync()
        rename, others = first._segments._disk.rename, []

        def late(path: Path, name: Path) -> None:
            others.append(opened(tmp_path))  # the first one has checked its epoch, and is frozen here
            others[0].append(b"second")
            rename(path, name)

        monkeypatch.setattr(first._segments._disk, "rename", late)
        with pytest.raises(LogError):
            first.append(b"x" * SEGMENT)
        with closing(others[0]):
            others[0].append(b"third" * 1000)
            assert texts(tmp_path) == [*before, b"second", b"third" * 1000]


def test_no_file_that_a_fenced_one_has_open_is_used_again(tmp_path: Path) -> None:
    records = [bytes([number]) * 3000 for number in range(10)]
    with closing(opened(tmp_path)) as first:
        for _ in records:
            position = first.append(bytes(3000))
        first.sync()
        first.cut(position // 2)
        files = [*first._segments.used, *first._segments._free]
        assert len(first._segments.used) > 2 and len(first._segments._free) > 2
        with closing(opened(tmp_path, begin=first._segments.used[0].start)) as second:
            assert second.end == position
            second.append(b"second")
            second.sync()
            second.cut(second.end)
            begin = second.end
            for text in records:
                second.append(text)
            # What it was about to do when it was frozen.
            for each in files:
                os.pwrite(each.descriptor, b"x" * each.nbytes, 0)
    with closing(Log(tmp_path, None, segment_bytes=SEGMENT)) as log:
        assert [bytes(each.message) for each in log.read(begin)] == records


def test_one_that_was_frozen_while_it_read_begins_nothing(tmp_path: Path) -> None:
    first = Log(tmp_path, None, segment_bytes=SEGMENT, epoch=Epoch(tmp_path))
    assert list(first.read(0)) == []
    with closing(opened(tmp_path)) as second:
        second.append(b"second")
        with closing(first), pytest.raises(LogError, match="another owner"):
            first.open(0)
        second.append(b"third" * 1000)
    assert texts(tmp_path) == [b"second", b"third" * 1000]


def test_nothing_is_told_to_be_on_the_disk_once_another_one_has_begun(tmp_path: Path) -> None:
    told: list[LogError | None] = []
    with closing(opened(tmp_path)) as first:
        position = first.append(b"first")
        first.when_synced(position, told.append)
        second = opened(tmp_path)
        with closing(second), pytest.raises(LogError):
            first.sync()
        assert isinstance(told[0], LogError)
        assert (first.synced, second.end) == (0, position)
        with pytest.raises(LogError):
            first.append(b"more")


def test_a_frozen_one_looks_before_its_first_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(tmp_path, interval=3600)) as first:
        first.append(b"first")
        opened(tmp_path).close()
        now = log_module._clock()
        monkeypatch.setattr(log_module, "_clock", lambda: now + 2)
        with pytest.raises(LogError, match="another owner"):
            first.append(b"late")
        assert first.has_failed


def test_with_always_each_record_that_was_acknowledged_is_kept(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    begun = threading.Event()
    with closing(opened(tmp_path, interval=0)) as first:

        def write() -> None:
            with suppress(LogError):
                for number in range(100_000):
                    text = b"%d" % number
                    done = threading.Event()
                    failed: list[LogError | None] = []
                    first.when_synced(first.append(text), lambda e, f=failed, d=done: (f.append(e), d.set()))  # type: ignore[misc]
                    done.wait()
                    if failed[0] is not None:
                        return
                    acknowledged.append(text)
                    begun.set()

        writer = threading.Thread(target=write)
        writer.start()
        assert begun.wait(30)
        with closing(opened(tmp_path)) as second:
            writer.join(30)
            assert not writer.is_alive()
            second.append(b"second")
    kept = texts(tmp_path)
    assert kept[: len(acknowledged)] == acknowledged
    assert kept[-1] == b"second"
    with pytest.raises(FencedError):
        first._epoch.check()  # type: ignore[union-attr]
