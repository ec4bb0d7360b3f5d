"""Fixtures: a Ray cluster whose nodes stand for machines."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from tests.ray.machines import Machines


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """A head and two nodes, whose workers find the modules of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        machines: Machines = import_module("tests.ray.machines").Machines()  # only where Ray is
        yield machines
        machines.close()
