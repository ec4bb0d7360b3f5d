"""Tests that a function is called again and again until that is ended, also after errors."""

from __future__ import annotations

import asyncio

import pytest

from ps_service.execution.periodic import Periodic


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

    async def later(self) -> None:
        await asyncio.sleep(0)
        self()


@pytest.mark.parametrize("is_coroutine", [False, True], ids=["function", "coroutine"])
async def test_calls_go_on_after_an_error_and_until_they_are_ended(
    is_coroutine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    looks = Looks()
    periodic = Periodic(0.001, looks.later if is_coroutine else looks, "looking")
    periodic.begin()
    async with asyncio.timeout(50):
        await looks.third.wait()
    await periodic.end()
    count = looks.count
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [OSError]
    assert "looking failed; it will be tried again" in caplog.text
    await periodic.end()
    assert looks.count == count, "it may be ended twice"


async def test_one_that_has_not_begun_may_be_ended() -> None:
    looks = Looks()
    await Periodic(0.0, looks, "looking").end()
    assert looks.count == 0
