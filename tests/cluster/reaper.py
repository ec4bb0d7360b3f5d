"""Removes what is left of a cluster when the process that started it has ended, however that ended.

python -m tests.cluster.reaper PROJECT IMAGE

It waits for the end of its standard input, which the system closes with the last process that has the other end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.cluster import engine

ROOT: Final = Path(__file__).resolve().parents[2]

_REMOVED: Final = {"container": ("--force", "--volumes"), "network": (), "volume": ("--force",)}
"""In this order: what a container uses cannot be removed before it."""


def remove(project: str, image: str) -> None:
    """Removes containers, networks, volumes and the image, as far as they are there."""
    for kind, flags in _REMOVED.items():
        ids = left(project, kind)
        if ids:
            engine.docker(kind, "rm", *flags, *ids, seconds=120.0)
    if engine.docker("image", "ls", "--quiet", image):
        engine.docker("image", "rm", "--force", image)


def left(project: str, kind: str) -> list[str]:
    """Ids of the containers, networks or volumes of a project."""
    every = ("--all",) if kind == "container" else ()
    found = engine.docker(kind, "ls", "--quiet", *every, "--filter", f"label=com.docker.compose.project={project}")
    return found.split()


class Reaper:
    """The process that waits for the end of this one, and of the commands that it has started.

    Args:
        project: Name of the project of Compose.
        image: What its containers are made from.
    """

    def __init__(self, project: str, image: str) -> None:
        command = [sys.executable, "-m", "tests.cluster.reaper", project, image]
        # In a session of its own, where Ctrl-C does not reach it.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True)
        assert self._process.stdin is not None
        self._end = self._process.stdin
        # Commands that run on after this process hold it open.
        os.set_inheritable(self._end.fileno(), True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()
        self._process.wait()


if __name__ == "__main__":
    sys.stdin.buffer.read()
    remove(*sys.argv[1:])
