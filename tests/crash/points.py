"""The named points at which an owner of the crash test can end itself with SIGKILL."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Final, NamedTuple


class Point(NamedTuple):
    """A point, and what an owner has to do to come there: `load`, `checkpoint`, `start`, `drain` or `damage`. It is
    reached about so often before it is unusual to be there: a kill waits for a number of times up to `most`."""

    name: str
    during: str
    most: int = 1


def _around(name: str, during: str, most: int = 1, torn: bool = False) -> list[Point]:
    middle = [Point(f"{name}.torn", during, most)] if torn else []
    return [Point(f"{name}.before", during, most), *middle, Point(f"{name}.after", during, most)]


ANSWERED: Final = {
    "attach": 1,
    "backward": 20,
    "call": 30,
    "create": 2,
    "delete": 1,
    "end_context": 10,
    "load_state": 1,
    "optimizer": 1,
    "push": 5,
    "release": 1,
    "scheduler": 1,
    "set_options": 1,
    "set_requires_grad": 1,
    "step": 15,
}
"""Operations before and after whose answers there are points."""

COMMITTED: Final = {
    "backward": 20,
    "call": 10,
    "create": 2,
    "delete": 1,
    "load_state": 1,
    "optimizer": 1,
    "push": 5,
    "scheduler": 1,
    "set_options": 1,
    "set_requires_grad": 1,
    "step": 15,
}
"""Operations before and after whose records are appended there are points."""


def _listed() -> Iterable[Point]:
    # The files of the log.
    yield from _around("log.body.write", "load", 60, torn=True)
    yield from _around("log.header.write", "load", 60, torn=True)
    yield from _around("log.sync", "load", 20)
    yield from _around("spare.allocate", "load", 2)
    yield from _around("log.reuse", "load", 2)
    yield from _around("folder.sync", "load", 2)
    yield from _around("log.release", "checkpoint")
    yield from _around("log.remove", "checkpoint")
    yield from _around("log.erase", "start")
    # Those of checkpoints.
    yield from _around("checkpoint.make", "checkpoint")
    for name in ("tensors", "state", "manifest"):
        yield from _around(f"checkpoint.{name}.write", "checkpoint", torn=True)
    yield from _around("checkpoint.file.sync", "checkpoint", 4)
    yield from _around("checkpoint.folder.sync", "checkpoint")
    yield from _around("checkpoint.rename", "checkpoint")
    yield from _around("checkpoint.file.remove", "checkpoint", 4)
    yield from _around("checkpoint.remove", "checkpoint")
    yield from _around("damaged.rename", "damage")
    # What requests do.
    for name, most in COMMITTED.items():
        yield from _around(f"commit.{name}", "load", most)
    for name, most in ANSWERED.items():
        yield from _around(f"answer.{name}", "load", most)
    yield from _around("step.compute", "load", 10)
    yield from _around("pass.opened", "load", 20)
    yield from _around("session.came", "load", 1)
    yield from _around("session.ended", "load", 1)
    # A checkpoint of a running owner, and the log behind it.
    yield from _around("checkpoint.objects", "checkpoint")
    yield from _around("checkpoint.piece", "checkpoint")
    yield from _around("log.cut", "checkpoint")
    # A start.
    yield Point("start.begin", "start")
    yield Point("restore.object", "start", 12)
    yield Point("restore.state", "start", 12)
    yield Point("restore.end", "start")
    yield Point("replay.record", "start", 60)
    yield Point("replay.end", "start")
    yield from _around("log.open", "start")
    yield from _around("log.began", "start")
    # The end of an owner that is stopped in order.
    yield from _around("drain.quiet", "drain")
    yield from _around("drain.keep", "drain")
    yield Point("drain.stop", "drain")


POINTS: Final = {each.name: each for each in _listed()}


class Points:
    """Ends this process at a point, once one is armed."""

    def __init__(self) -> None:
        self._armed = ""
        self._left = 0

    def arm(self, name: str, count: int) -> None:
        """Ends the process when the point is reached for the count-th time from now on. No name disarms."""
        assert not name or name in POINTS, name
        self._armed, self._left = name, count

    def reach(self, name: str) -> None:
        """The point is reached."""
        assert name in POINTS, name
        if self.is_due(name):
            self.end()

    def is_due(self, name: str) -> bool:
        """Whether the process is to end at the point, which is reached."""
        if name != self._armed:
            return False
        self._left -= 1
        return self._left == 0

    def end(self) -> None:
        """Ends the process, as the kernel does for want of memory."""
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()  # another thread may run for a moment after the signal was sent
