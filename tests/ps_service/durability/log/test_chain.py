"""A signed log is only read if each of its records is the one that was written there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest

from ps_service.durability.keys import Keys, SignatureError, make
from ps_service.durability.log import records
from ps_service.durability.log.chain import Chain
from ps_service.durability.log.log import Log
from ps_service.durability.log.records import Record

SEGMENT = 4096


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    make(tmp_path / "keys")
    return Keys.read(tmp_path / "keys")


def opened(folder: Path, keys: Keys | None, owner: str = "ps0", begin: int = 0, code: bytes = b"") -> Log:
    log = Log(folder, None, segment_bytes=SEGMENT, chain=None if keys is None else Chain(keys, owner))
    for _ in log.read(begin, code):
        pass
    log.open(log.end)
    return log


def write(folder: Path, keys: Keys | None, contents: Iterable[bytes], owner: str = "ps0") -> None:
    folder.mkdir(exist_ok=True)
    with closing(opened(folder, keys, owner)) as log:
        for content in contents:
            log.append(content, [b"payload"])
        log.sync()


def read(folder: Path, keys: Keys | None, owner: str = "ps0", begin: int = 0, code: bytes = b"") -> list[Record]:
    chain = None if keys is None else Chain(keys, owner)
    return list(Log(folder, None, segment_bytes=SEGMENT, chain=chain).read(begin, code))


def forge(folder: Path, wanted: int, change: Callable[[bytes], bytes]) -> None:
    """Changes the message of a record, and puts its checksum right. Its code stays."""
    record = read(folder, None)[wanted]
    path = next(each for each in sorted(folder.iterdir(), reverse=True) if int(each.name[4:]) <= record.position)
    place = record.position - int(path.name[4:])
    body = change(record.message) + bytes(record.payload)
    code = record.code
    sign = (lambda head, content: code) if code else None
    made = records.header(record.position, record.synced, len(record.message), memoryview(body), sign) + body
    content = bytearray(path.read_bytes())
    content[place : place + len(made)] = made
    path.write_bytes(content)


CONTENTS = [bytes([65 + i]) * (i * 100) for i in range(20)]


def test_it_is_read_as_it_was_written_over_files_and_starts(tmp_path: Path, keys: Keys) -> None:
    for i in range(0, len(CONTENTS), 5):
        write(tmp_path / "log", keys, CONTENTS[i : i + 5])
    found = read(tmp_path / "log", keys)
    assert [each.message for each in found] == CONTENTS and len(list((tmp_path / "log").iterdir())) > 4
    assert all(bytes(each.payload) == b"payload" for each in found)
    assert [each.message for each in read(tmp_path / "log", None)] == CONTENTS  # without keys as well
    middle = found[7]
    assert [each.message for each in read(tmp_path / "log", keys, "ps0", middle.end, middle.code)] == CONTENTS[8:]
    with pytest.raises(SignatureError, match=rf"position {middle.end} "):
        read(tmp_path / "log", keys, "ps0", middle.end, found[6].code)


@pytest.mark.parametrize("wanted", [1, 7, 19])
def test_a_record_that_was_changed_with_its_checksum_is_refused(tmp_path: Path, keys: Keys, wanted: int) -> None:
    write(tmp_path / "log", keys, CONTENTS)
    position = read(tmp_path / "log", keys)[wanted].position
    forge(tmp_path / "log", wanted, lambda message: message.lower())
    assert read(tmp_path / "log", None)[wanted].message == CONTENTS[wanted].lower()
    with pytest.raises(SignatureError, match=rf"at position {position} .* somebody has changed it"):
        read(tmp_path / "log", keys)


def test_a_record_of_another_owner_key_or_history_is_refused(tmp_path: Path, keys: Keys) -> None:
    write(tmp_path / "a", keys, CONTENTS[:2])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    write(tmp_path / "a", keys, CONTENTS[2:4])
    write(tmp_path / "b", keys, [each.lower() for each in CONTENTS[2:4]])
    with pytest.raises(SignatureError):
        read(tmp_path / "a", keys, "ps1")
    make(tmp_path / "other")
    with pytest.raises(SignatureError, match="its key is missing"):
        read(tmp_path / "a", Keys.read(tmp_path / "other"))
    # Another record that this owner has written in the same place, in a copy of its directory.
    one, other = (sorted((tmp_path / name).iterdir())[-1] for name in "ab")
    last, instead = read(tmp_path / "a", keys)[3], read(tmp_path / "b", keys)[3]
    assert (last.position, one.name) == (instead.position, other.name) and last.message != instead.message
    content, place = bytearray(one.read_bytes()), last.position - int(one.name[4:])
    content[place:] = other.read_bytes()[place:]
    one.write_bytes(content)
    assert [each.message for each in read(tmp_path / "a", None)] == [*CONTENTS[:3], CONTENTS[3].lower()]
    with pytest.raises(SignatureError, match=rf"position {last.position} "):
        read(tmp_path / "a", keys)


def test_what_is_not_signed_is_refused_with_what_to_do(tmp_path: Path, keys: Keys) -> None:
    write(tmp_path / "log", keys, CONTENTS[:3])
    end = read(tmp_path / "log", keys)[-1].end
    write(tmp_path / "log", None, CONTENTS[3:5])
    assert len(read(tmp_path / "log", None)) == 5
    with pytest.raises(
        SignatureError, match=rf"not signed from position {end} on.*without a key file.*ps-service sign"
    ):
        read(tmp_path / "log", keys)


def test_keys_may_be_replaced_between_two_starts(tmp_path: Path, keys: Keys) -> None:
    write(tmp_path / "log", keys, CONTENTS[:3])
    make(tmp_path / "keys")
    both = Keys.read(tmp_path / "keys")
    write(tmp_path / "log", both, CONTENTS[3:6])
    assert [each.message for each in read(tmp_path / "log", both)] == CONTENTS[:6]
    with pytest.raises(SignatureError):
        read(tmp_path / "log", keys)


def test_the_last_records_can_be_cut_off_as_by_a_crash(tmp_path: Path, keys: Keys) -> None:
    write(tmp_path / "log", keys, CONTENTS[:5])
    last = read(tmp_path / "log", keys)[-1]
    path = sorted((tmp_path / "log").iterdir())[-1]
    path.write_bytes(path.read_bytes()[: last.position - int(path.name[4:])] + bytes(SEGMENT))
    assert [each.message for each in read(tmp_path / "log", keys)] == CONTENTS[:4]
