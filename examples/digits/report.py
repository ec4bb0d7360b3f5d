"""The report of a run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Report:
    """The results of one run, as in ``demo.json``."""

    accuracy: float
    """Share of the held-out digits that were classified correctly, from 0 to 1."""
    steps: int
    """Optimizer steps taken by all trainers together."""
    trainers: int
    seconds: float
    """From the first trainer's start to the last one's finish."""
    steps_per_second: float
    loss: list[list[float]]
    """One list per trainer, by rank: the loss of each of its steps."""

    def write(self, path: Path) -> None:
        """Writes the figures as JSON with a line per field."""
        fields = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in asdict(self).items())
        path.write_text("{\n" + ",\n".join(fields) + "\n}\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads what :meth:`write` wrote.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is not JSON.
            TypeError: its fields are not those of a report.
        """
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True)
class ChaosReport(Report):
    """The results of a run whose owner was killed, as in ``chaos.json``. Times in seconds since the trainers began."""

    times: list[list[float]]
    """One list per trainer, by rank: when each of its steps was taken."""
    kills: list[list[float]]
    """For each kill: when it was, and when the owner served again."""
    pauses: list[float]
    """For each kill and trainer: seconds from its last step before to its first one after."""
    repeated: int
    """Passes that were open when the owner was killed, and that trainers have run again."""
    version: int
    """Steps that the optimizer has applied: as many as trainers were told."""
