"""The walk: few functions run for one pass, on its owner and on its trainer."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.conftest import ROOT

MOST_CALLS = {
    "NeuMF, owner": 225,
    "NeuMF, trainer": 235,
    "transformer, owner": 268,
    "transformer, trainer": 264,
}


def test_few_functions_run_for_a_pass() -> None:
    # Not forked: with the autograd functions of the tests' modules, no backward of an own class runs on the event loop.
    command = [sys.executable, "-m", "benchmarks.walk"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    counted = {name: int(calls) for name, calls in re.findall(r"^(.+): (\d+) calls", done.stdout, re.MULTILINE)}
    assert counted.keys() == MOST_CALLS.keys()
    assert all(counted[name] <= most for name, most in MOST_CALLS.items()), counted
