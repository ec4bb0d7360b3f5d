"""Tests that an owner survives the end of a pass whose graph is very deep."""

from __future__ import annotations

from tests.forking.process import Forking


def test_the_graph_of_a_long_recurrence_is_freed(forking: Forking) -> None:
    with forking.start("tests.integration.deep_graph") as process:
        assert process.communicate(timeout=100).split() == ["4", "True"]
        assert process.returncode == 0
