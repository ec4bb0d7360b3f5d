"""The benchmark of restarts works: it restarts a real owner, and leaves none. No timings."""

from __future__ import annotations

import psutil
import pytest

from benchmarks.killed import MB, restart
from benchmarks.restarts import pause
from ps_wire.limits import MIB


@pytest.mark.usefixtures("forked_programs")
async def test_an_owner_is_restarted_and_measured() -> None:
    found = await pause(4)
    assert found.state == 3 * (4 * MIB + 4096)
    assert min(found.drain, found.start, found.plain) > 0
    assert not [child for child in psutil.Process().children() if "ps_service" in " ".join(child.cmdline())]


@pytest.mark.usefixtures("forked_programs")
async def test_an_owner_is_killed_and_its_start_measured() -> None:
    found = await restart(20 * MB, 10 * MB)
    assert (found.state, found.log) == (4 * (1024 * 1024 + 1024) * 4, 4 * (1024 * 1024 + 1024) * 2)
    assert found.seconds > 0 and found.target == pytest.approx(3 + found.state / 500e6 + found.log / 200e6)
    assert not [child for child in psutil.Process().children() if "ps_service" in " ".join(child.cmdline())]
