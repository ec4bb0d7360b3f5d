"""Tests that owners and trainers have their first call of oneMKL before they have threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("what", ["settle", "owner", "trainer"])
def test_the_processor_is_known_before_threads_compute(what: str) -> None:
    command = [sys.executable, "-m", "tests.ps_wire.numerics.known_processor", what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode and done.stderr.startswith("this "):
        pytest.skip(done.stderr)
    assert done.stdout == "True\n", done.stderr
