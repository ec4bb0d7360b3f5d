"""The word language model in two processes: the same losses as in one, and a perplexity that falls."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.output import assert_announced
from tests.forking.process import Forking
from tests.forking.programs import forked_programs

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--vocabulary", "200", "--embedding", "32", "--hidden", "32", "--layers", "1", "--lr", "10")


def environment() -> dict[str, str]:
    """That of the programs, which compute in one thread."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def run(out: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Runs the example in processes of its own; gives its figures and what it printed."""
    command = [sys.executable, "-m", "examples.word_language_model", "--out", str(out), *SMALL, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_announced(done.stdout, until="untrained")
    assert "has called shutdown" not in done.stderr, "the owner is meant to wait"
    return json.loads((out / "short" / "word_language_model.json").read_text()), done.stdout


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, forking: Forking) -> tuple[Path, dict[str, Any], str]:
    """A run beside a local model: where its files are, its figures, and what it printed."""
    out = tmp_path_factory.mktemp("out")
    with forked_programs(forking):
        return out, *run(out, "--check-local", "--epochs", "2")


def test_every_loss_equals_that_of_local_training(checked: tuple[Path, dict[str, Any], str]) -> None:
    _, report, output = checked
    assert report["compared"] == 50
    assert report["difference"] <= 1e-9
    assert "in 50 steps no loss differed" in output


def test_the_perplexity_of_held_out_text_falls(checked: tuple[Path, dict[str, Any], str]) -> None:
    _, report, _ = checked
    untrained, *epochs = [epoch["held_out_perplexity"] for epoch in report["epochs"]]
    assert untrained == pytest.approx(200, rel=0.05)
    assert epochs == sorted(epochs, reverse=True)
    assert epochs[-1] < report["unigram_perplexity"] / 1.5
    losses = [loss for epoch in report["epochs"] for loss in epoch["losses"]]
    assert len(losses) == sum(epoch["steps"] for epoch in report["epochs"])
    assert sum(losses[-10:]) < 0.75 * sum(losses[:10])


def test_there_is_a_picture(checked: tuple[Path, dict[str, Any], str]) -> None:
    out, *_ = checked
    assert (out / "short" / "word_language_model.png").read_bytes().startswith(b"\x89PNG")


def test_a_check_keeps_the_files_of_a_full_run(checked: tuple[Path, dict[str, Any], str]) -> None:
    out, *_ = checked
    assert os.listdir(out) == ["short"]


@pytest.mark.usefixtures("forked_programs")
def test_no_process_is_left_after_a_signal_to_the_trainer(tmp_path: Path, forking: Forking) -> None:
    before = forking.children()
    command = [sys.executable, "-m", "examples.word_language_model", "--out", str(tmp_path), *SMALL]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        while not trainer.stdout.readline().startswith("untrained"):
            assert trainer.poll() is None
        assert len(forking.children() - before) == 2
        trainer.send_signal(signal.SIGTERM)
        assert trainer.wait(60) == 128 + signal.SIGTERM
    assert forking.children() == before
    assert not list(tmp_path.iterdir())
