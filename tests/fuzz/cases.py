"""What was sent, in a form that can be sent again, and what was found with it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Case:
    """What a target was given. `notes` say how it came about: the seed of its random numbers, for instance."""

    target: str
    parts: list[bytes] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def to_plain(self) -> dict[str, object]:
        """The same as JSON."""
        return {
            "target": self.target,
            "notes": self.notes,
            "parts": [base64.b64encode(each).decode() for each in self.parts],
        }


class Finding(Exception):
    """An owner has done what it must not; the message says what."""


def save(path: Path, cases: list[Case], what: str) -> Path:
    """Writes cases, in the order in which they were sent, into a file for `--replay`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"found": what, "cases": [each.to_plain() for each in cases]}
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def load(path: Path) -> list[Case]:
    """The cases in a file."""
    content = json.loads(path.read_text())
    return [
        Case(each["target"], [base64.b64decode(part) for part in each["parts"]], each["notes"])
        for each in content["cases"]
    ]
