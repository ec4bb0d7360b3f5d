"""What a log holds is told, with what is damaged or not whole in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ps_service.durability.log.log import Log
from ps_service.durability.log.segments import Segments
from ps_service.durability.log_inspection import InspectedLog, inspect_log
from ps_wire.v1 import checkpoint_pb2 as pb
from tests.ps_service.durability.log.test_log import opened


def stepped(version: int) -> bytes:
    step = pb.StepEffect(object_id="0", version=version)
    return pb.LogRecord(effects=[pb.Effect(step=step)]).SerializeToString()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log of twelve records in more than two files, of which the first eight are on the disk."""
    with closing(opened(tmp_path)) as made:
        for version in range(1, 13):
            made.append(stepped(version), [bytes([version]) * 900])
            if version == 8:
                made.sync()
        yield made


def inspected(folder: Path) -> InspectedLog:
    found = inspect_log(folder, [])
    assert found is not None
    return found


def flip(folder: Path, position: int) -> None:
    """Damages a byte of the log, or repairs it."""
    path = max(each for each in folder.glob("log-*") if int(each.name[4:]) <= position)
    content = bytearray(path.read_bytes())
    content[position - int(path.name[4:])] ^= 1
    path.write_bytes(content)


def ends(folder: Path) -> list[int]:
    return [each.end for each in Log(folder, None).read(0)]


def test_records_in_several_files_are_counted(tmp_path: Path, log: Log) -> None:
    found = inspected(tmp_path)
    assert (found.begin, found.end, found.records, found.damage, found.torn) == (0, log.end, 12, "", False)
    assert found.files == len(list(tmp_path.glob("log-*"))) > 2 and found.nbytes == log.nbytes
    (optimizer,) = found.objects
    assert (optimizer.version, optimizer.changes) == (12, 12)


def test_a_torn_end_is_told_and_is_no_damage(tmp_path: Path, log: Log) -> None:
    *_, last, end = ends(tmp_path)
    flip(tmp_path, end - 100)
    found = inspected(tmp_path)
    assert (found.end, found.records, found.damage, found.torn) == (last, 11, "", True)
    assert found.objects[0].version == 11


def test_records_behind_one_that_is_not_whole_are_dropped_with_it(tmp_path: Path, log: Log) -> None:
    end = ends(tmp_path)[8]
    flip(tmp_path, end + 100)
    found = inspected(tmp_path)
    assert (found.end, found.records, found.damage, found.torn) == (end, 9, "", True)


@pytest.mark.parametrize("place", [0, 2, 7])
def test_a_hole_in_what_was_on_the_disk_is_damage_at_its_position(tmp_path: Path, log: Log, place: int) -> None:
    begin = [0, *ends(tmp_path)][place]
    flip(tmp_path, begin + 100)
    found = inspected(tmp_path)
    assert f"is damaged at position {begin}: " in found.damage
    assert (found.end, found.records, found.torn) == (begin, place, False)


def test_a_file_that_is_missing_is_damage(tmp_path: Path, log: Log) -> None:
    first, second, *_ = sorted(tmp_path.glob("log-*"))
    second.unlink()
    found = inspected(tmp_path)
    assert f"is damaged at position {int(second.name[4:])}: " in found.damage
    assert first.exists() and 0 < found.records < 8


@pytest.mark.parametrize("before", [0, 3])
def test_a_log_that_grows_meanwhile_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    check_end, rounds = Segments._check_end, [1, 2]

    def check(segments: Segments, end: int) -> None:
        # Behind what was read, records are written, of which the later ones know that the first are on the disk.
        for _ in range(rounds.pop() if rounds else 0):
            log.append(stepped(9), [bytes(100)])
            log.sync()
        check_end(segments, end)

    with closing(opened(tmp_path)) as log:
        for version in range(before):
            log.append(stepped(version))
        log.sync()
        monkeypatch.setattr(Segments, "_check_end", check)
        found = inspected(tmp_path)
        assert found.damage == "" and found.records >= before + 2


def test_without_a_log_there_is_nothing_to_tell(tmp_path: Path) -> None:
    assert inspect_log(tmp_path, []) is None
