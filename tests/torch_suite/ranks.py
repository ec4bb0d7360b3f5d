"""The processes of one test, forked from this one, which has imported everything."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from benchmarks.leash import end_with_parent
from tests.ports import ReservedPort
from tests.torch_suite.fixture import Place, case
from tests.torch_suite.results import FAILED, PASSED

SKIPPED: Final = "skipped"

GRACE: Final = 3.0
"""Seconds that the other processes of a test have after one has failed or skipped it."""


class Outcome(NamedTuple):
    """What became of a test, or of one of its processes.

    Attributes:
        verdict: `PASSED`, `FAILED` or `SKIPPED`.
        errors: The errors of the processes that have failed, or why they have skipped it.
    """

    verdict: str
    errors: tuple[str, ...] = ()


class Rank:
    """One process of a test, which leads a process group.

    Args:
        work: What it does.
        log: Where its standard output and error go.

    Attributes:
        log: The same.
        pipe: The descriptor of a pipe in which the outcome will stand.
        outcome: What became of it; None before the pipe is read to its end.
    """

    def __init__(self, work: Callable[[], Outcome], log: Path) -> None:
        self.log = log
        self.outcome: Outcome | None = None
        self._text = bytearray()
        self.pipe, writing = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _child(work, writing, log)
        os.close(writing)
        with contextlib.suppress(OSError):  # The child does the same, and may have ended.
            os.setpgid(self._pid, self._pid)

    def read(self) -> None:
        """Reads from the pipe, in which there is something or which is at its end."""
        data = os.read(self.pipe, 65_536)
        self._text += data
        if not data:
            verdict, errors = json.loads(self._text or '["failed", ["the process has ended without a result"]]')
            self.outcome = Outcome(verdict, tuple(errors))

    def end(self) -> None:
        """Ends the process, and those that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self.pipe)


class Running:
    """A test that runs in as many processes as it wants.

    Args:
        cls: Its class.
        name: Its name.
        seconds: The most time it may take.
        logs: A directory for the output of its processes; None if it is of no interest.

    Attributes:
        until: When its time is over, on the monotonic clock.
    """

    def __init__(self, cls: type, name: str, seconds: float, logs: Path | None) -> None:
        self._began = time.monotonic()
        self._seconds = seconds
        self._logs = logs
        self.until = self._began + seconds
        self._directory = tempfile.TemporaryDirectory(prefix="torch-suite-")
        file = Path(self._directory.name, "init")
        file.touch()
        self._port = ReservedPort()
        place = Place(self._port.number, str(file))
        first: Any = case(cls, name, 0, place)
        self._ranks: list[Rank] = []
        for rank in range(first.world_size):
            log = logs / f"{cls.__name__}.{name}.{rank}.txt" if logs else Path(os.devnull)
            self._ranks.append(Rank(partial(_outcome, cls, name, rank, place), log))

    @property
    def done(self) -> bool:
        """Whether all processes are done, or the time is over."""
        return not self.pipes() or time.monotonic() >= self.until

    def pipes(self) -> list[int]:
        """The pipes of the processes that are not done."""
        return [rank.pipe for rank in self._ranks if rank.outcome is None]

    def read(self, ready: list[int]) -> None:
        """Reads from those of its pipes that are among the given ones."""
        for rank in self._ranks:
            if rank.outcome is None and rank.pipe in ready:
                rank.read()
                if rank.outcome is not None and rank.outcome.verdict != PASSED:
                    self.until = min(self.until, time.monotonic() + GRACE)

    def end(self) -> tuple[Outcome, float]:
        """Ends all processes; what became of the test, and how many seconds it took."""
        for rank in self._ranks:
            rank.end()
        self._directory.cleanup()
        self._port.close()
        outcome = self._joined()
        if self._logs is not None and outcome.verdict != FAILED:
            for rank in self._ranks:
                rank.log.unlink(missing_ok=True)
        return outcome, time.monotonic() - self._began

    def _joined(self) -> Outcome:
        told = [rank.outcome for rank in self._ranks if rank.outcome is not None]
        for verdict in (FAILED, SKIPPED):
            if found := [each for each in told if each.verdict == verdict]:
                return Outcome(verdict, tuple(error for each in found for error in each.errors))
        if len(told) < len(self._ranks):
            return Outcome(FAILED, (f"no end within {self._seconds:g} s",))
        return Outcome(PASSED)


def _outcome(cls: type, name: str, rank: int, place: Place) -> Outcome:
    """Runs a test, as one of its processes."""
    try:
        getattr(case(cls, name, rank, place), name)()
    except unittest.SkipTest as skipped:
        return Outcome(SKIPPED, (str(skipped),))
    except SystemExit as left:
        return Outcome(SKIPPED, (f"it ends with code {left.code}",))
    except BaseException:
        return Outcome(FAILED, (traceback.format_exc(limit=-6),))
    return Outcome(PASSED)


def _child(work: Callable[[], Outcome], writing: int, log: Path) -> NoReturn:
    """What the forked process does."""
    try:
        os.setpgid(0, 0)
        end_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with log.open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        faulthandler.enable()
        outcome = work()
        with contextlib.suppress(OSError), os.fdopen(writing, "w") as pipe:
            json.dump(outcome, pipe)
    finally:
        os._exit(0)
