"""The log has every record that was synced after any loss of power, and every record after any end of the process."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_service.durability.log import records
from ps_service.durability.log.disk import Buffer, Disk
from ps_service.durability.log.log import Log, LogError
from ps_service.durability.log.segments import DamagedLogError
from tests.ps_service.durability.log.losing_disk import FailingDisk, LosingDisk

SEGMENT = 4096
PATIENCE = 60.0

Content = tuple[bytes, bytes]


def opened(folder: Path, begin: int = 0, disk: Disk | None = None, interval: float | None = None) -> Log:
    log = Log(folder, interval, disk, SEGMENT)
    for _ in log.read(begin):
        pass
    log.open(log.end)
    return log


def contents(folder: Path, begin: int = 0) -> list[Content]:
    log = Log(folder, None, segment_bytes=SEGMENT)
    return [(each.message, bytes(each.payload)) for each in log.read(begin)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with closing(opened(tmp_path)) as made:
        yield made


def content(choose: random.Random) -> Content:
    return choose.randbytes(choose.choice([0, 1, 60, 700])), choose.randbytes(choose.choice([0, 0, 30, 3000, 9000]))


@given(st.integers(0, 10**9))
def test_after_kills_and_losses_of_power_the_log_is_a_beginning_with_all_that_was_synced(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    choose, folder, disk = random.Random(seed), tmp_path_factory.mktemp("log"), LosingDisk()
    appended: list[Content] = []
    ends: list[int] = []
    begin = 0
    for _ in range(choose.randrange(1, 5)):
        log = opened(folder, begin, disk)
        synced = log.end
        for _ in range(choose.randrange(12)):
            message, payload = content(choose)
            ends.append(log.append(message, [payload[:7], payload[7:]]))
            appended.append((message, payload))
            if choose.random() < 0.3:
                log.sync()
                synced = log.end
                if choose.random() < 0.3:
                    begin = choose.choice([each for each in (begin, *ends) if each >= begin])
                    log.cut(begin)
        log.close()
        if choose.random() < 0.7:
            disk.lose(choose)
        else:
            synced = log.end  # only the process has ended
        left = sum(end <= begin for end in ends)
        found = contents(folder, begin)
        assert found == appended[left:][: len(found)]
        assert len(found) >= sum(begin < end <= synced for end in ends)
        del appended[left + len(found) :], ends[left + len(found) :]


def test_records_of_any_length_are_read_as_they_were_written(tmp_path: Path, log: Log) -> None:
    choose = random.Random(1)
    written = [content(choose) for _ in range(300)]
    for message, payload in written:
        log.append(message, [payload])
    assert contents(tmp_path) == written


def test_files_are_used_again_and_what_they_had_is_not_read(tmp_path: Path, log: Log) -> None:
    names = set()
    for number in range(200):
        last = log.append(b"%d" % number, [bytes(500)])
        if number % 10 == 9:
            log.sync()
            log.cut(last)
            names |= {path.name for path in tmp_path.iterdir()}
            assert len(list(tmp_path.iterdir())) < 8
    assert log.append(b"last") and contents(tmp_path, last) == [(b"last", b"")]
    assert any(name.startswith("free-") for name in names)


@pytest.mark.parametrize("place", ["header", "message", "payload"])
def test_what_was_on_the_disk_and_is_damaged_is_an_error_that_names_its_position(
    tmp_path: Path, log: Log, place: str
) -> None:
    log.append(b"first", [b"1"])
    middle = log.end
    log.append(b"second", [b"2" * 100])
    log.sync()
    log.append(b"third")
    (path,) = tmp_path.glob("log-*")
    damaged = bytearray(path.read_bytes())
    damaged[middle + {"header": 17, "message": 41, "payload": 90}[place]] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(DamagedLogError, match=rf"is damaged at position {middle}: what was on the disk up to \d+ is"):
        contents(tmp_path)


@pytest.mark.parametrize("seek", [os.SEEK_DATA, 99], ids=["told of holes", "not told"])
def test_what_was_on_the_disk_is_found_behind_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seek: int) -> None:
    monkeypatch.setattr(os, "SEEK_DATA", seek)
    ends = []
    with closing(Log(tmp_path, None, segment_bytes=1 << 20)) as log:
        log.open(log.end)
        for _ in range(4):
            log.append(b"", [bytes(100_000)])
            log.sync()
            ends.append(log.end)
    (path,) = tmp_path.glob("log-*")
    written = path.read_bytes()
    with path.open("wb") as file:
        file.write(written[: ends[0]])
        for begin, end in ((ends[1], ends[1] + 1), (ends[2], ends[3])):
            file.seek(begin)
            file.write(written[begin:end])
        file.truncate(len(written))
    with pytest.raises(DamagedLogError, match=rf"at position {ends[0]}: what was on the disk up to {ends[2]} is"):
        contents(tmp_path)


def test_a_torn_end_is_dropped_and_its_rest_is_never_read(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as log:
        log.append(b"whole")
        torn = log.end
        log.append(b"torn", [bytes(200)])
        log.append(b"behind it")
    (path,) = tmp_path.glob("log-*")
    damaged = bytearray(path.read_bytes())
    damaged[torn + 100] ^= 1
    path.write_bytes(damaged)
    assert contents(tmp_path) == [(b"whole", b"")]
    with closing(opened(tmp_path)) as log:
        # It ends where the one behind the torn one began.
        log.append(b"anew", [bytes(200)])
        assert contents(tmp_path) == [(b"whole", b""), (b"anew", bytes(200))]


def test_files_that_are_dropped_are_never_read_at_the_same_positions(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as log:
        for number in range(12):
            log.append(b"before", [bytes([number]) * 900])
    first, *more = sorted(tmp_path.glob("log-*"))
    assert len(more) == 2
    damaged = bytearray(first.read_bytes())
    damaged[100] ^= 1
    first.write_bytes(damaged)
    with closing(opened(tmp_path)) as log:
        for number in range(1, 12):
            log.append(b"anew", [bytes([number]) * 900])
            assert contents(tmp_path) == [(b"anew", bytes([each]) * 900) for each in range(1, number + 1)]


@pytest.mark.parametrize("left", [0, 1000])
def test_a_spare_file_whose_size_was_lost_is_not_used(tmp_path: Path, left: int) -> None:
    opened(tmp_path).close()
    (spare,) = tmp_path.glob("free-*")
    os.truncate(spare, left)
    written = [(b"%d" % number, bytes(1000)) for number in range(12)]
    with closing(opened(tmp_path)) as log:
        for message, payload in written:
            log.append(message, [payload])
    assert contents(tmp_path) == written
    assert all(path.stat().st_size == SEGMENT for path in tmp_path.iterdir())


def test_a_last_file_whose_size_was_lost_has_nothing(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as log:
        for number in range(6):
            log.append(b"%d" % number, [bytes(1000)])
    _, last = sorted(tmp_path.glob("log-*"))
    os.truncate(last, 0)
    left = contents(tmp_path)
    assert [message for message, _ in left] == [b"0", b"1", b"2"]
    with closing(opened(tmp_path)) as log:
        log.append(b"again")
    assert contents(tmp_path) == [*left, (b"again", b"")]


def test_a_position_that_the_log_does_not_have_is_told(tmp_path: Path, log: Log) -> None:
    for _ in range(30):
        log.append(b"x" * 1000)
    log.sync()
    log.cut(log.end)
    log.append(b"last")
    with pytest.raises(DamagedLogError, match=r"is damaged at position 0: what was on the disk up to \d+ is not whole"):
        contents(tmp_path)


def test_files_that_were_not_allocated_when_the_process_was_killed_are_not_used(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as log:
        log.append(b"before")
        end = log.end
    for name, nbytes in ((f"log-{end:020}", 0), ("free-00000000000000000090", 0), ("free-00000000000000000091", 100)):
        (tmp_path / name).write_bytes(bytes(nbytes))
    assert contents(tmp_path) == [(b"before", b"")]
    written = [(b"before", b""), *((b"%d" % number, bytes(900)) for number in range(12))]
    with closing(opened(tmp_path)) as log:
        for message, payload in written[1:]:
            log.append(message, [payload])
    assert contents(tmp_path) == written
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {SEGMENT}


def test_a_file_is_read_from_the_middle_on(tmp_path: Path, log: Log) -> None:
    log.append(b"one")
    position = log.end
    log.append(b"two")
    assert contents(tmp_path, position) == [(b"two", b"")]


# Synced in time


def test_waiting_ends_when_the_log_is_on_the_disk(tmp_path: Path) -> None:
    ended = threading.Event()
    with closing(opened(tmp_path, interval=0.0)) as log:
        end = log.append(b"one")
        log.when_synced(end, lambda error: ended.set())
        assert ended.wait(PATIENCE) and log.synced == end
        called: list[LogError | None] = []
        log.when_synced(end, called.append)
        assert called == [None]


def test_with_an_interval_records_are_synced_without_being_asked(tmp_path: Path) -> None:
    ended = threading.Event()
    with closing(opened(tmp_path, interval=0.01)) as log:
        log.when_synced(log.append(b"one"), lambda error: ended.set())
        assert ended.wait(PATIENCE)


def test_many_threads_append_whole_records(tmp_path: Path, log: Log) -> None:
    def write(number: int) -> None:
        for i in range(50):
            log.append(b"%d %d" % (number, i), [bytes([number]) * (i * 37 % 900)])

    threads = [threading.Thread(target=write, args=(each,)) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = contents(tmp_path)
    assert len(found) == 200
    for number in range(4):
        own = [(message, payload) for message, payload in found if message.startswith(b"%d " % number)]
        assert own == [(b"%d %d" % (number, i), bytes([number]) * (i * 37 % 900)) for i in range(50)]


# A disk that fails


def test_a_full_disk_refuses_records_until_there_is_room(tmp_path: Path) -> None:
    disk = FailingDisk()
    with closing(opened(tmp_path, disk=disk)) as log:
        disk.full = True
        written = []
        with pytest.raises(LogError, match=r"the log in .* cannot be written: No space left on device") as caught:
            for number in range(100):
                log.append(b"%d" % number, [bytes(1000)])
                written.append((b"%d" % number, bytes(1000)))
        assert caught.value.errno == errno.ENOSPC and written
        assert contents(tmp_path) == written
        disk.full = False
        log.append(b"again")
    assert contents(tmp_path) == [*written, (b"again", b"")]


def test_a_record_that_was_written_in_part_is_not_there(tmp_path: Path) -> None:
    disk = FailingDisk()
    with closing(opened(tmp_path, disk=disk)) as log:
        log.append(b"first")
        disk.worn = True
        with pytest.raises(LogError, match="Input/output error"):
            log.append(b"second", [b"2" * 300])
        assert contents(tmp_path) == [(b"first", b"")]
        disk.worn = False
        log.append(b"third")
    assert contents(tmp_path) == [(b"first", b""), (b"third", b"")]


def test_after_a_sync_that_failed_nothing_is_appended(tmp_path: Path) -> None:
    disk = FailingDisk()
    with closing(opened(tmp_path, disk=disk)) as log:
        told: list[LogError | None] = []
        log.when_synced(log.append(b"first"), told.append)
        disk.broken = True
        with pytest.raises(LogError, match="Input/output error"):
            log.sync()
        log.when_synced(log.end, told.append)
        assert [error is not None and error.errno for error in told] == [errno.EIO, errno.EIO]
        disk.broken = False
        for _ in range(2):
            with pytest.raises(LogError, match="Input/output error"):
                log.append(b"second")
        with pytest.raises(LogError):
            log.check()
        assert log.synced < log.end


def test_the_size_of_a_record_is_what_it_takes() -> None:
    for message, payload in [(0, 0), (1, 0), (24, 0), (25, 0), (100, 3), (88, 64)]:
        taken = records.size(message, payload)
        header = records.header(64, 0, message, memoryview(bytes(message + payload)))
        assert len(header) == records.HEADER_BYTES
        assert taken % records.ALIGNMENT == 0 and 0 <= taken - len(header) - message - payload < records.ALIGNMENT


def test_what_changes_while_it_is_written_is_read_as_it_was_written(tmp_path: Path) -> None:
    payload = bytearray(3000)

    class Disturbed(Disk):
        def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> None:
            super().write(descriptor, buffers, offset)
            payload[0] = 1

    with closing(opened(tmp_path, disk=Disturbed())) as log:
        log.append(b"one", [payload])
    assert contents(tmp_path) == [(b"one", bytes(3000))]


def test_what_a_process_that_ended_has_not_synced_is_synced_before_it_counts(tmp_path: Path) -> None:
    disk = LosingDisk()
    log = opened(tmp_path, disk=disk)
    written = [(b"%d" % number, bytes([number]) * 900) for number in range(12)]
    for message, payload in written:
        log.append(message, [payload])
    log.close()
    assert len(list(tmp_path.glob("log-*"))) > 2
    log = opened(tmp_path, disk=disk)
    assert log.synced == log.end
    log.append(b"after")
    log.sync()
    log.close()
    disk.lose(random.Random(1))
    assert contents(tmp_path) == [*written, (b"after", b"")]


# How far it is on the disk


def test_the_lag_counts_what_is_not_on_the_disk(tmp_path: Path, log: Log) -> None:
    assert log.lag == (0, 0, 0.0)
    log.append(b"one")
    first = log.lag
    log.append(b"two")
    assert (first.records, first.nbytes) == (1, 64) and first.seconds > 0.0
    assert (log.lag.records, log.lag.nbytes) == (2, 128) and log.lag.seconds > first.seconds
    log.sync()
    assert log.lag == (0, 0, 0.0)


def test_in_a_hurry_the_next_sync_does_not_wait_for_its_time(tmp_path: Path) -> None:
    with closing(opened(tmp_path, interval=3600.0)) as log:
        for _ in range(3):
            ended = threading.Event()
            end = log.append(b"one")
            log.when_synced(end, lambda error: ended.set(), hurry=True)  # noqa: B023
            assert ended.wait(PATIENCE) and log.synced == end


def test_trouble_lasts_until_a_record_can_be_written_again(tmp_path: Path) -> None:
    disk = FailingDisk()
    with closing(opened(tmp_path, disk=disk)) as log:
        disk.full = True
        with pytest.raises(LogError):
            log.check(1 << 20)
        assert log.trouble is not None and not log.has_failed
        disk.full = False
        log.check()
        assert log.trouble is None
        log.append(b"one")
        disk.broken = True
        with pytest.raises(LogError):
            log.sync()
        assert log.trouble is not None and log.has_failed
