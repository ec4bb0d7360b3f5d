"""What the crash test prints: a line for each round, and a table at the end."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.crash.events import Action
from tests.crash.points import POINTS


class Restart(NamedTuple):
    """When an owner was started, and when it served."""

    owner: str
    began: float
    served: float


class Report:
    """Counts, and prints. The folder gets a list of what has happened, in seconds of `time.monotonic`."""

    def __init__(self, folder: Path) -> None:
        self._notes = folder / "kills.txt"
        self._began = time.monotonic()
        self.kinds: Counter[str] = Counter()
        self.points: Counter[str] = Counter()
        self._missed: Counter[str] = Counter()
        self._power = 0
        self._checks = 0
        self._acknowledged: Counter[str] = Counter()
        self._doubtful = 0
        self._served: list[float] = []
        self._answered: list[float] = []
        self.rounds = 0
        self._round: tuple[Any, ...] = ()

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return self.kinds.total()

    def rarest(self, choose: random.Random) -> str:
        """A point that was hit the least, of those that are not missed again and again."""
        tried = {name: self.points[name] + self._missed[name] for name in POINTS}
        least = min(tried.values())
        return choose.choice([name for name, count in tried.items() if count <= least])

    def note(self, text: str) -> None:
        """Notes what has happened."""
        with self._notes.open("a") as file:
            file.write(f"{time.monotonic():.3f} {text}\n")

    def killed(self, kind: str, point: str = "") -> None:
        """A process was killed."""
        self.note(f"killed {kind} {point}")
        self.kinds[kind] += 1
        if point:
            self.points[point] += 1

    def missed(self, point: str) -> None:
        """An owner did not come to a point in time."""
        self.note(f"missed {point}")
        self._missed[point] += 1

    def lost_power(self, owner: str) -> None:
        """What a disk had of an owner was made of what it had synced."""
        self.note(f"{owner} has lost what was not synced")
        self._power += 1

    def checked(self, actions: Sequence[Action], restarts: Sequence[Restart], workloads: Mapping[str, Any]) -> None:
        """Actions are checked now, with the restarts among them."""
        self._checks += 1
        for each in actions:
            if each.is_done:
                self._acknowledged[each.workload] += 1
            else:
                self._doubtful += 1
        for restart in restarts:
            self._served.append(restart.served - restart.began)
            answers = [
                each.done_at
                for each in actions
                if each.is_done and each.done_at > restart.served and _owner(each, workloads) == restart.owner
            ]
            if answers:
                self._answered.append(min(answers) - restart.began)

    def begin_round(self, modes: Sequence[str]) -> None:
        """A round begins."""
        self.rounds += 1
        self.note(f"round {self.rounds} with {modes}")
        self._round = (modes, self.kills, self._acknowledged.total(), time.monotonic())

    def end_round(self) -> None:
        """Prints its line."""
        modes, kills, acknowledged, began = self._round
        self.note("the round is over")
        print(
            f"round {self.rounds:4}  {' '.join(f'{each:13}' for each in modes)}  {self.kills - kills:3} kills, "
            f"{self._acknowledged.total() - acknowledged:5} actions acknowledged, lost 0, twice 0, "
            f"{time.monotonic() - began:5.1f} s; {self.kills} kills, {len(self.points)} points",
            flush=True,
        )

    def tell(self) -> None:
        """Prints the table."""
        minutes = (time.monotonic() - self._began) / 60
        print(
            f"\n{self.kills} kills, {self.kills / minutes:.1f} a minute, in {self.rounds} rounds, {minutes:.1f} minutes"
        )
        for kind, count in self.kinds.most_common():
            print(f"  {kind:10} {count:6}")
        print(f"  of these with loss of what was not synced: {self._power}")
        print(f"points hit: {len(self.points)} of {len(POINTS)}")
        for name in POINTS:
            missed = f"   (not reached in time: {self._missed[name]})" if self._missed[name] else ""
            print(f"  {name:32} {self.points[name]:5}{missed}")
        print(f"restarts: {len(self._served)}")
        for title, seconds in (("until it serves", self._served), ("until it answers", self._answered)):
            if seconds:
                print(f"  {title}: median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s")
        by_name = ", ".join(f"{name} {count}" for name, count in sorted(self._acknowledged.items()))
        print(f"checks: {self._checks}; actions acknowledged: {self._acknowledged.total()} ({by_name})")
        print(f"in doubt when their trainer was killed: {self._doubtful}")


def _owner(action: Action, workloads: Mapping[str, Any]) -> str:
    """The owner of an action that is for one alone."""
    if "owner" in action.what:
        return str(action.what["owner"])
    uses = workloads[action.workload].uses
    return str(uses[0]) if len(uses) == 1 else ""
