"""The walk: a gradient crosses few functions on its way from a trainer to the step."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

MOST_FUNCTIONS = 169


@pytest.mark.usefixtures("forked_programs")
def test_a_gradient_crosses_few_functions() -> None:
    command = [sys.executable, "-m", "benchmarks.walk"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    counted = re.match(r"(\d+) functions in \d+ files", done.stdout)
    assert counted is not None, done.stdout
    assert int(counted[1]) <= MOST_FUNCTIONS
