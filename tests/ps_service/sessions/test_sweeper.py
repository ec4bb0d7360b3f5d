"""Tests that the sweeper runs again and again until it is closed, also after errors."""

from __future__ import annotations

import asyncio

import pytest

from ps_service.sessions.sweeper import Sweeper
from ps_wire.limits import Limits


class Looks:
    """Counts how often it is looked; the first time fails."""

    def __init__(self) -> None:
        self.count = 0
        self.third = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        if self.count == 1:
            raise OSError("it cannot be seen")
        if self.count == 3:
            self.third.set()


@pytest.mark.parametrize(
    "limits",
    [
        Limits(lease_seconds=0.004, max_context_seconds=3600.0),
        Limits(lease_seconds=0.004, max_context_seconds=0.0),
        Limits(lease_seconds=3600.0, max_context_seconds=0.004),
    ],
    ids=["lease", "lease alone", "contexts"],
)
async def test_sweeps_follow_the_shortest_time_limit(limits: Limits, caplog: pytest.LogCaptureFixture) -> None:
    looks = Looks()
    sweeper = Sweeper(limits, looks)
    sweeper.begin()
    async with asyncio.timeout(20):
        await looks.third.wait()
    await sweeper.end()
    count = looks.count
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [OSError]
    await sweeper.end()
    assert looks.count == count, "it may be ended twice"


async def test_one_that_has_not_begun_may_be_ended() -> None:
    looks = Looks()
    await Sweeper(Limits(), looks).end()
    assert looks.count == 0
