"""The recommender on three machines, one of which is lost on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("matplotlib")

from tests.conftest import ROOT

STEPS = 60


def test_a_machine_is_lost_and_no_step(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.recommender.on_ray", "--steps", str(STEPS), "--batch-size", "64"]
    done = subprocess.run(
        [*command, "--held-out", "1000", "--no-compile", "--out", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "short" / "recommender-on-ray.json").read_text())
    assert len(report["steps"]) == STEPS and set(report["applied"].values()) == {STEPS}, "none is lost or counts twice"
    assert report["cut"] < report["back"] and report["moved"][0] != report["moved"][1]
    assert report["pause"] > report["back"] - report["cut"] - 5.0
    assert report["auc"][-1][1] > 0.5
    assert (tmp_path / "short" / "recommender-on-ray.png").stat().st_size > 10_000
