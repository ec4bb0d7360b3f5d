"""Tests the audit log: its lines, its limit, and files that are moved or cannot be written."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ps_service.measures.audit_log import MOST_LINES, AuditLog
from ps_service.measures.events import Events
from tests.ps_service.clock import Clock
from tests.waiting import until


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def written(so: Callable[[], bool]) -> None:
    """Waits until the thread of the log has come so far."""
    asyncio.run(until(so))


def lines(place: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in place.read_text("utf-8").splitlines()]


def test_lines_say_who_did_what_and_only_their_owner_may_read_them(place: Path) -> None:
    for _ in range(2):  # a restart goes on behind what is there
        with closing(AuditLog(str(place), "ps0")) as audit:
            audit.note("made", "info", "'net' was made", trainer="aa", subject="net", certificate="alice", address="")
    first, second = lines(place)
    assert first.pop("timestamp") <= second["timestamp"]
    assert first == {
        "owner": "ps0",
        "kind": "made",
        "level": "info",
        "event": "'net' was made",
        "trainer": "aa",
        "subject": "net",
        "certificate": "alice",
    }
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_a_flood_is_cut_and_the_log_says_so(place: Path, clock: Clock) -> None:
    def joins(number: int, address: str, **more: str) -> None:
        audit.note("joined", "info", f"trainer {number}", trainer=str(number), address=address, **more)

    with closing(AuditLog(str(place), "ps0", clock)) as audit:
        for number in range(MOST_LINES + 3):
            joins(number, f"10.0.0.7:{number}")
        joins(0, "10.0.0.8:1")
        audit.note("refused", "warning", "a stream was refused", address="10.0.0.7:5")
        joins(0, "10.0.0.7:9", certificate="alice")
        written(lambda: audit.written == MOST_LINES + 3)
        clock.now += 61
        joins(0, "10.0.0.7:1")
        written(lambda: audit.written == MOST_LINES + 5)
        for number in range(MOST_LINES + 1):
            joins(number, f"10.0.0.7:{number}")
    found = lines(place)
    left_out = [(each["of"], each["identity"], each["count"]) for each in found if each["kind"] == "left_out"]
    assert left_out == [("joined", "10.0.0.7", 3), ("joined", "10.0.0.7", 2)]
    assert "3 lines of the kind 'joined' about 10.0.0.7 were left out" in [each["event"] for each in found]
    assert len(found) == 2 * MOST_LINES + 5


def test_a_file_that_was_moved_is_made_again(place: Path) -> None:
    with closing(AuditLog(str(place), "ps0")) as audit:
        audit.note("made", "info", "first")
        written(lambda: audit.written == 1)
        place.rename(place.with_suffix(".1"))
        audit.note("made", "info", "second")
    assert [each["event"] for each in lines(place)] == ["second"]


def test_a_full_disk_loses_lines_and_stops_nobody(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    place.symlink_to("/dev/full")
    with closing(AuditLog(str(place), "ps0")) as audit:
        audit.note("made", "info", "first")
        audit.note("made", "info", "second")
        written(lambda: audit.lost == 2)
        place.unlink()
        audit.note("made", "info", "third")
    assert [each["event"] for each in lines(place)] == ["third"]
    assert [each.levelname for each in caplog.records] == ["WARNING"], "once"
    assert "No space left on device" in caplog.text


def test_standard_output_is_a_place_and_a_missing_folder_is_none(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with closing(AuditLog("-", "ps0")) as audit:
        audit.note("made", "info", "first")
    assert json.loads(capfd.readouterr().out)["event"] == "first"
    with pytest.raises(FileNotFoundError):
        AuditLog(str(place / "audit.jsonl"), "ps0")


@pytest.mark.parametrize("kind", ["raised", "slow", "away", "log"])
def test_what_hosted_code_says_is_not_in_it(place: Path, kind: str) -> None:
    def note(events: Events, kind: str) -> None:
        events.note(kind, "with a value of 3.14159\n", alike=kind, by={"address": "10.0.0.7:1"})

    with closing(AuditLog(str(place), "ps0")) as audit:
        events = Events()
        events.audit = audit
        note(events, kind)
        note(events, "back")
        note(events, "back")
    assert [each["kind"] for each in lines(place)] == ["back", "back"], "also what the events leave out"
    assert len(events.latest()) == 2
    assert lines(place)[0]["event"] == "with a value of 3.14159 "
