"""The report of a run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Report:
    """The results of one run, as in ``cartpole.json``."""

    solved: bool
    """Whether the running reward exceeded the threshold."""
    threshold: float
    episodes: int
    observers: int
    seed: int
    steps: int
    """Of all observers together; each is two calls to the agent."""
    seconds: float
    """From the first episode to the last."""
    rewards: list[list[float]]
    """For each episode the reward of each observer."""
    running: list[float]
    """For each episode the running reward after it."""

    def write(self, path: Path) -> None:
        """Writes the figures as JSON with a line per field."""
        fields = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in asdict(self).items())
        path.write_text("{\n" + ",\n".join(fields) + "\n}\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads what `write` wrote.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is not JSON.
            TypeError: Its fields are not those of a report.
        """
        return cls(**json.loads(path.read_text()))
