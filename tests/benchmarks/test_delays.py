"""The benchmark over links with delay: lines keep their times, and the command measures or says why it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.delays import namespace
from benchmarks.delays.__main__ import main
from benchmarks.delays.line import Line
from tests.conftest import ROOT


def test_packets_arrive_after_the_delay_and_in_order() -> None:
    line = Line(delay=1.0, rate=0.0)
    line.put(b"one", now=5.0)
    line.put(b"two", now=5.5)
    assert line.next_arrival() == 6.0
    assert line.arrived(5.9) is None
    assert line.arrived(6.0) == b"one"
    assert line.arrived(6.0) is None
    assert line.arrived(9.0) == b"two"
    assert line.next_arrival() is None
    assert line.sent == 6


def test_packets_are_sent_one_after_the_other_at_the_rate() -> None:
    line = Line(delay=0.5, rate=100.0)
    for _ in range(3):
        line.put(bytes(50), now=1.0)
    arrivals = []
    while (at := line.next_arrival()) is not None:
        arrivals.append(at)
        line.arrived(at)
    assert arrivals == [2.0, 2.5, 3.0]
    # The line was idle: a packet is sent at once.
    line.put(bytes(50), now=9.0)
    assert line.next_arrival() == 10.0


def test_a_machine_without_the_means_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(namespace, "_TUN", str(tmp_path / "tun"))
    assert main(["--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("skipped: ")


@pytest.mark.usefixtures("forked_programs")
def test_passes_over_a_link_are_measured_or_the_reason_is_said(tmp_path: Path) -> None:
    short = ["--rounds", "1", "--seconds", "0.02", "--depth", "2", "--works", "scale,prefetch", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.delays", *short]
    before = set(psutil.Process().children(recursive=True))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped: " in done.stdout or ("2 in flight" in done.stdout and "depth 2" in done.stdout)
    assert not set(psutil.Process().children(recursive=True)) - before
