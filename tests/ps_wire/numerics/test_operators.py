"""Tests that threads find the Python objects of operators, in a process of its own, which would end otherwise."""

from __future__ import annotations

import torch

from ps_wire.numerics.operators import resolve
from tests.forking.process import Forking


def test_threads_that_see_an_operation_first_at_the_same_time_find_its_object(forking: Forking) -> None:
    """Without `resolve`, such a process ends with a segmentation fault two times in three."""
    for _ in range(3):
        with forking.start("tests.ps_wire.numerics.first_operations") as process:
            told = process.communicate()
        assert (process.returncode, told) == (0, "all there\n")


def test_operators_of_a_library_that_comes_later_are_made_when_asked_for() -> None:
    resolve()
    with torch.library._scoped_library("coming_late", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        made = vars(torch.ops.coming_late)
        resolve()
        assert "twice" not in made
        resolve(again=True)
        assert "default" in vars(made["twice"])
    resolve(again=True)
