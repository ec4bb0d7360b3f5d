"""Tests what a line of the log looks like, for people and for programs."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator

import pytest

from ps_service.cli import logs
from ps_service.measures.events import Events

TRACEBACK = 'Traceback (most recent call last):\n  File "models.py", line 3, in forward\nValueError: no\n'


Written = Callable[[], str]


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Written]:
    """What was written to standard error since the last time."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield lambda: capsys.readouterr().err
    root.handlers[:] = handlers
    root.setLevel(level)


def fail() -> None:
    secret = "the value of a variable"  # noqa: F841  # it must not be in the log
    raise ValueError("no")


def test_an_event_is_one_object_with_its_fields(written: Written) -> None:
    logs.configure("info", "auto")
    Events().note("raised", "it raised", "warning", trainer="0123abcd", subject="net", traceback=TRACEBACK)
    (line,) = written().splitlines()
    told = json.loads(line)
    assert told.pop("timestamp").endswith("Z")
    assert told == {
        "event": "it raised",
        "level": "warning",
        "logger": "ps_service.events",
        "kind": "raised",
        "number": 1,
        "trainer": "0123abcd",
        "subject": "net",
        "traceback": TRACEBACK,
    }


def test_an_event_is_one_sentence_and_its_traceback(written: Written) -> None:
    logs.configure("info", "text")
    Events().note("raised", "it raised", "warning", trainer="0123abcd", traceback=TRACEBACK)
    Events().note("joined", "it has come", trainer="0123abcd")
    first, *trace, second = written().splitlines()
    assert first.split()[1:] == ["[warning", "]", "it", "raised", "[ps_service.events]"]
    assert trace == TRACEBACK.splitlines()
    assert second.split()[1:] == ["[info", "]", "it", "has", "come", "[ps_service.events]"]


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_format_tells_values_of_variables(written: Written, format: str) -> None:
    logs.configure("info", format)  # type: ignore[arg-type]
    try:
        fail()
    except ValueError:
        logging.getLogger("ps_service.x").exception("it failed")
    text = written()
    assert "ValueError" in text and "fail" in text
    assert "the value of a variable" not in text


def test_levels_below_are_not_written(written: Written) -> None:
    logs.configure("warning", "json")
    Events().note("joined", "it has come")
    assert written() == ""
