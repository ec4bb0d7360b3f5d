"""Tests that an error of an owner's own code costs it no thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ps_service.execution.fair_queue import WorkItem
from tests.ps_service.execution.pools import Pool
from tests.ps_service.threads import PATIENCE
from tests.waiting import until


async def test_work_that_raises_costs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = Pool(threads=2)
    told: list[tuple[object, str]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append((args.exc_value, args.thread.name)))
    error = SystemError("a fault")

    def fail() -> Any:
        raise error

    for item in (WorkItem("a"), WorkItem("a"), WorkItem("a", apart=True)):
        compute.submit(fail, item)
    await until(lambda: len(told) == 3)
    assert {each for each, _ in told} == {error}
    together = threading.Barrier(2)
    places = await asyncio.gather(*(compute.run(lambda: together.wait(PATIENCE)) for _ in range(2)))
    assert sorted(places) == [0, 1]
    compute.close()
