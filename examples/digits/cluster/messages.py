"""The output of a trainer of the cluster: lines for people, which programs can parse, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

_STEP = re.compile(r"step (\d+) loss (\S+) versions((?: [\w.-]+=\d+)+)$")
_ACCURACY = re.compile(r"accuracy (\d\.\d{4})$")


@dataclass(frozen=True)
class Step:
    """A step was taken."""

    step: int
    """Counted from 1, per trainer."""
    loss: float
    versions: Mapping[str, int]
    """The version of the shared optimizer that this step made on each owner: no other step has the same one."""

    def __str__(self) -> str:
        versions = " ".join(f"{owner}={version}" for owner, version in self.versions.items())
        return f"step {self.step} loss {self.loss:.4f} versions {versions}"

    @classmethod
    def read(cls, line: str) -> Self | None:
        """Parses the step at the end of a line; None if there is none."""
        found = _STEP.search(line)
        if found is None:
            return None
        versions = (pair.split("=") for pair in found[3].split())
        return cls(int(found[1]), float(found[2]), {owner: int(version) for owner, version in versions})


@dataclass(frozen=True)
class Accuracy:
    """The share of the held-out digits that the network classifies correctly."""

    share: float

    def __str__(self) -> str:
        return f"accuracy {self.share:.4f}"

    @classmethod
    def read(cls, line: str) -> Self | None:
        """Parses the accuracy at the end of a line; None if there is none."""
        found = _ACCURACY.search(line)
        return cls(float(found[1])) if found else None
