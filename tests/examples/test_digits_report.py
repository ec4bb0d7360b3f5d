"""Tests the output of a run: the report, the picture, and the trainers' messages."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.image
import pytest

from examples.digits import data, messages, picture
from examples.digits.chaos import Kill, pauses
from examples.digits.messages import Finish, Start, Step
from examples.digits.report import ChaosReport, Report
from examples.digits.settings import Settings, parse

REPORT = Report(0.975, 6, 2, 0.5, 12.0, [[2.3, 1.0, 0.5], [2.4, 1.1, 0.25]])


def test_the_report_comes_back_as_it_was(tmp_path: Path) -> None:
    REPORT.write(tmp_path / "demo.json")
    assert Report.read(tmp_path / "demo.json") == REPORT


def test_the_report_of_a_killed_owner_comes_back_as_it_was(tmp_path: Path) -> None:
    report = ChaosReport(0.975, 2, 1, 9.5, 0.2, [[2.3, 1.0]], [[1.0, 8.0]], [[2.0, 7.5]], [7.0], 1, 2)
    report.write(tmp_path / "chaos.json")
    assert ChaosReport.read(tmp_path / "chaos.json") == report


def test_pauses_are_those_around_kills() -> None:
    kills = [Kill(10.0, 14.0), Kill(20.0, 24.0)]
    # One that was told of a step after the kill, one that begins late, one that has finished, and one without a step.
    times = [[9.0, 10.5, 15.0, 19.0, 26.0], [16.0, 17.0, 25.0], [8.0, 15.5, 16.0], []]
    assert pauses(kills, times) == [4.5, 7.5, 7.0, 8.0]


def test_the_report_is_plain_json(tmp_path: Path) -> None:
    REPORT.write(tmp_path / "demo.json")
    fields = json.loads((tmp_path / "demo.json").read_text())
    assert set(fields) == {"accuracy", "steps", "trainers", "seconds", "steps_per_second", "loss"}
    assert len(fields["loss"]) == fields["trainers"]


@pytest.mark.parametrize(("trainers", "digits", "wrong"), [(1, 3, 0), (9, 80, 40)])
def test_the_picture_is_a_png_of_the_promised_size(tmp_path: Path, trainers: int, digits: int, wrong: int) -> None:
    """Also of fewer digits than there is room for."""
    held_out = data.load().held_out[:digits]
    predictions = held_out.labels.clone()
    predictions[:wrong] = (predictions[:wrong] + 1) % 10
    report = Report(1 - wrong / digits, 3 * trainers, trainers, 0.5, 6.0 * trainers, [[2.3, 1.0, 0.5]] * trainers)
    picture.draw(tmp_path / "demo.png", report, held_out, predictions)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    assert matplotlib.image.imread(tmp_path / "demo.png").shape[:2] == (1200, 1800)


@pytest.mark.parametrize("message", [Start(0, 540), Step(1, 17, 0.25), Finish(1, 540, 12.5)])
def test_a_message_comes_back_as_it_was(message: messages.Message) -> None:
    line = messages.encode(message)
    assert "\n" not in line
    assert messages.decode(line) == message


@pytest.mark.parametrize("line", ["", "hello", "[]", "3", "{}", '{"type": "end"}', '{"type": "step", "rank": 0}'])
def test_refuses_lines_that_are_no_messages(line: str) -> None:
    with pytest.raises(ValueError, match="not a message"):
        messages.decode(line)


def test_the_command_line_has_the_documented_defaults() -> None:
    assert parse([]) == Settings()
    assert parse(["--chaos"]) == Settings(chaos=5.0)


@pytest.mark.parametrize("arguments", [["--trainers", "0"], ["--epochs", "0"], ["--batch-size", "-1"]])
def test_the_command_line_refuses_nonsense(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_the_command_line_refuses_kills_at_no_time(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["--chaos", seconds])
    assert "a number of seconds above 0" in capsys.readouterr().err
