"""Which skipped tests CI names at its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "skips"

TESTS = """
import pytest

def test_that_runs(): assert True
@pytest.mark.skip(reason="it rains")
def test_outside(): raise AssertionError
@pytest.mark.parametrize("day", [1, 2])
@pytest.mark.skip(reason="it rains")
def test_picnic(day): raise AssertionError
"""
NEEDS = """
import pytest

pytest.importorskip({package!r})
def test_with_it(): assert True
"""


def results(folder: Path, name: str, **files: str) -> None:
    """Runs tests, and writes their results to a file of this name."""
    for module, text in files.items():
        (folder / f"{module}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", "-c", "/dev/null"]
    modules = [str(folder / f"{module}.py") for module in files]
    command += [f"--junitxml={folder}/{name}", *modules]
    # What is installed beside pytest takes longer than these tests.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(command, check=False, capture_output=True, cwd=folder, env=environment)


def test_skipped_tests_are_named_with_their_reason_unless_they_ran_elsewhere(tmp_path: Path) -> None:
    package = NEEDS.format(package="no_such_package")
    results(tmp_path, "first.xml", test_days=TESTS, test_package=package, test_missing=package)
    results(tmp_path, "second.xml", test_package=NEEDS.format(package="json"))
    printed = subprocess.run([sys.executable, SCRIPT, tmp_path], check=True, capture_output=True, text=True).stdout
    assert printed.split("\n") == [
        "",
        "Skipped: 4 tests",
        "  could not import 'no_such_package': No module named 'no_such_package'",
        "    test_missing",
        "  it rains",
        "    test_days.test_outside",
        "    test_days.test_picnic[1]",
        "    test_days.test_picnic[2]",
        "",
    ]


def test_nothing_skipped_is_said_too(tmp_path: Path) -> None:
    results(tmp_path, "only.xml", test_package=NEEDS.format(package="json"))
    printed = subprocess.run([sys.executable, SCRIPT, tmp_path], check=True, capture_output=True, text=True).stdout
    assert printed == "\nSkipped: 0 tests\n"
