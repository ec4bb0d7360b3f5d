"""Runs tests, a few at a time."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from types import ModuleType

from tests.rpc.torch_suite import Test
from tests.torch_suite.catalogue import CUDA, FAULTY, excuse, never_run
from tests.torch_suite.ranks import SKIPPED, Outcome, Running
from tests.torch_suite.results import FAILED, NOT_APPLICABLE, PASSED, Result


def run(
    tests: Iterable[Test], modules: Mapping[str, ModuleType], jobs: int, seconds: float, logs: Path | None
) -> Generator[Result]:
    """Runs tests, and says of each what became of it as soon as it is known.

    Closing the iterator ends all processes.

    Args:
        tests: The tests.
        modules: The modules of the suite by their files.
        jobs: How many tests run at once.
        seconds: The most time of each.
        logs: A directory for the output of tests that fail; None if it is of no interest.
    """
    waiting = deque(tests)
    running: dict[Running, Test] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                test = waiting.popleft()
                if why := never_run(test):
                    yield Result(*test, NOT_APPLICABLE, why)
                else:
                    running[Running(getattr(modules[test.file], test.cls), test.name, seconds, logs)] = test
            _wait(running)
            for each in [each for each in running if each.done]:
                test = running.pop(each)
                yield _result(test, *each.end())
    finally:
        for each in running:
            each.end()


def _wait(running: Iterable[Running]) -> None:
    """Waits until processes have told something, or the time of a test is over."""
    pipes = [pipe for each in running for pipe in each.pipes()]
    if pipes:
        rest = min(each.until for each in running) - time.monotonic()
        ready = select.select(pipes, [], [], max(0.0, rest))[0]
        for each in running:
            each.read(ready)


def _result(test: Test, outcome: Outcome, took: float) -> Result:
    if outcome.verdict == SKIPPED:
        return Result(*test, NOT_APPLICABLE, _skipped(outcome.errors[0]), seconds=took)
    if outcome.verdict == FAILED and (why := excuse(test, outcome.errors)):
        return Result(*test, NOT_APPLICABLE, why, outcome.errors[0], took)
    return Result(*test, outcome.verdict, "", "" if outcome.verdict == PASSED else outcome.errors[0], took)


def _skipped(why: str) -> str:
    """The reason of a test that skips itself."""
    # With these codes torch's tests say how many GPUs they need.
    if why.startswith("it ends with code"):
        return CUDA
    return why if why == FAULTY else f"skipped by torch: {why}"
