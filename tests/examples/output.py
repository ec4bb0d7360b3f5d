"""What a program of the examples prints when its output goes to a file."""

from __future__ import annotations

import re


def assert_announced(output: str, until: str) -> None:
    """Fails if the output does not say how long the program takes before it says `until`, or is not plain text."""
    assert "with the defaults this takes " in output.partition(until)[0], output
    assert until in output
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", output), "control characters"
