"""The innocent trainer beside the fuzzer, as the fuzzer sees it."""

from __future__ import annotations

import json
import select
import time
from typing import Any, Final

from tests.forking.process import Forking
from tests.fuzz.cases import Finding

LONGEST: Final = 10.0
"""Most seconds that a pass of it may take."""


class Innocent:
    """A trainer process that makes a pass when it is asked to. `losses` has what it has told."""

    def __init__(self, forking: Forking, address: str) -> None:
        self._process = forking.start("tests.fuzz.innocent", address)
        self.losses: list[str] = []
        self.slowest = 0.0
        self._asked = 0.0
        self._wait()

    def go(self) -> None:
        """Asks for a pass, unless one is being made. Raises `Finding` if that takes too long."""
        if self._asked:
            self.look(0.0)
        if not self._asked:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            self._asked = time.monotonic()

    def look(self, seconds: float) -> None:
        """Takes up what it has told, waiting for at most so long. Raises `Finding`."""
        if not self._asked:
            return
        if select.select([self._process.stdout], [], [], seconds)[0]:
            told = self._wait()
            self.losses.append(told["loss"])
            self.slowest = max(self.slowest, told["seconds"])
            self._asked = 0.0
        elif time.monotonic() - self._asked > LONGEST:
            raise Finding(f"a pass of the innocent trainer takes longer than {LONGEST:g} s")

    def finish(self) -> None:
        """Waits for its pass."""
        while self._asked:
            self.look(1.0)

    def _wait(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line or '{"failed": "it has ended"}')
        if "failed" in found:
            raise Finding(f"the innocent trainer has failed: {found['failed']}")
        return found

    def close(self) -> None:
        """Ends it."""
        with self._process:
            pass


def undisturbed(forking: Forking, address: str, count: int) -> list[str]:
    """The losses of as many passes with an owner that has nothing else to do."""
    trainer = Innocent(forking, address)
    try:
        while len(trainer.losses) < count:
            trainer.go()
            trainer.finish()
        return trainer.losses
    finally:
        trainer.close()
