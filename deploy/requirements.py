"""Prints the dependencies of a pyproject.toml, so that they can be installed before the project.

python requirements.py pyproject.toml EXTRA...
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(file: Path, extras: list[str]) -> list[str]:
    """The project's dependencies, and those of some of its extras.

    Raises:
        KeyError: There is no such extra.
    """
    project = tomllib.loads(file.read_text("utf-8"))["project"]
    return project["dependencies"] + [each for extra in extras for each in project["optional-dependencies"][extra]]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])))
