"""Tests the ring of events: numbers, bounds, what happens again, and the log."""

from __future__ import annotations

import logging
import re

import pytest

from ps_service.measures.events import KINDS, MOST_EVENTS, Events
from tests.conftest import ROOT
from tests.ps_service.clock import Clock
from tests.ps_service.threads import Worker


@pytest.fixture
def events(clock: Clock) -> Events:
    return Events(clock)


def test_events_have_numbers_that_only_grow_and_times(events: Events, clock: Clock) -> None:
    assert (events.last, events.latest()) == (0, [])
    events.note("joined", "one has come", trainer="aa")
    clock.now += 5
    events.note("made", "it was made", subject="net")
    first, second = events.latest()
    assert (first.number, first.kind, first.text, first.trainer, first.level) == (
        1,
        "joined",
        "one has come",
        "aa",
        "info",
    )
    assert (second.number, second.subject, second.time_seconds - first.time_seconds) == (2, "net", 5.0)
    assert events.last == 2


def test_only_the_latest_are_kept_and_asked_for(events: Events) -> None:
    for number in range(MOST_EVENTS + 10):
        events.note("made", str(number))
    assert [each.number for each in events.latest()] == list(range(11, MOST_EVENTS + 11))
    assert [each.number for each in events.latest(3)] == [MOST_EVENTS + 8, MOST_EVENTS + 9, MOST_EVENTS + 10]
    assert [each.number for each in events.latest(3, MOST_EVENTS + 9)] == [MOST_EVENTS + 10]
    assert events.latest(0) == events.latest(5, events.last) == []


def test_what_happens_again_is_told_ever_more_rarely(events: Events) -> None:
    for _ in range(1500):
        events.note("raised", "it raised", traceback="line 3", alike=("raised", "net"))
    events.note("raised", "another raised", alike=("raised", "other"))
    assert [(each.count, each.traceback) for each in events.latest()] == [
        (1, "line 3"),
        (10, ""),
        (100, ""),
        (1000, ""),
        (1, ""),
    ]
    assert events.latest()[3].text == "it raised (this has happened 1,000 times)"


def test_texts_and_tracebacks_have_bounds(events: Events) -> None:
    events.note("raised", "x" * 1_000_000, traceback="a" * 1_000_000 + "the end")
    (event,) = events.latest()
    assert len(event.text) <= 1024 and len(event.traceback) <= 8192 and event.traceback.endswith("the end")
    for number in range(3000):
        events.note("slow", "slow", alike=number)
    assert len(events._alike) <= 1024


def test_each_event_is_logged_once_with_its_fields(events: Events, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ps_service.events"):
        events.note("joined", "one has come: 100%", trainer="aa")
        traceback = "Traceback\n  line 3\nValueError: no\n"
        events.note("raised", "it raised", "error", traceback=traceback, alike="same")
        events.note("raised", "it raised", "error", alike="same")
    joined, raised = caplog.records
    assert (joined.getMessage(), joined.levelname, vars(joined)["kind"]) == ("one has come: 100%", "INFO", "joined")
    assert (vars(joined)["trainer"], vars(joined)["number"], "subject" in vars(joined)) == ("aa", 1, False)
    assert raised.levelname == "ERROR" and raised.exc_info is None
    # What an ordinary handler prints.
    assert logging.Formatter("%(message)s").format(raised) == "it raised\nTraceback\n  line 3\nValueError: no"


def test_a_text_stays_in_its_line(events: Events) -> None:
    events.note("raised", "a\n2026 [info] all is well\x1b[2J", traceback="line 1\nline 2\x1b[2J")
    (event,) = events.latest()
    assert (event.text, event.traceback) == ("a 2026 [info] all is well [2J", "line 1\nline 2?[2J")


def test_threads_get_numbers_of_their_own(events: Events) -> None:
    def note() -> None:
        for _ in range(200):
            events.note("made", "it was made")

    workers = [Worker(note) for _ in range(4)]
    for worker in workers:
        worker.result()
    assert [each.number for each in events.latest()] == list(range(1, 801))


def test_every_kind_that_is_noted_is_listed() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "ps_service").rglob("*.py")]
    noted = {kind for text in texts for kind in re.findall(r"events\.note\(\s*\"(\w+)\"", text)}
    assert len(noted) > 15 and noted <= KINDS.keys()
