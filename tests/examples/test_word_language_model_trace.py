"""The trace of one step of the word language model, and its picture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from examples.word_language_model.trace_picture import PHASES, bars_of
from tests.conftest import ROOT


@pytest.mark.usefixtures("forked_programs")
def test_a_step_is_recorded_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "step.png"
    command = [sys.executable, "-m", "examples.word_language_model.trace", "--out", str(tmp_path)]
    done = subprocess.run([*command, "--picture", str(picture)], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    trace = json.loads((tmp_path / "word_language_model_step.json").read_text())
    bars = list(bars_of(trace["traceEvents"]))
    assert [bar.text for bar in bars if bar.row == "phases"] == list(PHASES)
    requests = [(bar.text, bar.phase) for bar in bars if bar.row == "requests" and bar.text != "train"]
    expected = [
        ("EmbeddingTable", "forward"),
        ("Decoder", "forward"),
        *[("backward", "backward")] * 2,
        ("step", "step"),
    ]
    assert requests == expected
    assert [(bar.text, bar.phase) for bar in bars if bar.row == "work"] == expected
    # What the owner did for a request lies within it.
    for work in (bar for bar in bars if bar.row == "work"):
        assert any(
            each.begin <= work.begin <= work.end <= each.end
            for each in bars
            if each.row == "requests" and each.text == work.text
        )
