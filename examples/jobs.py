"""Owners and trainers of an example as processes of their own, started as `ps-service run` starts them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import examples
from ps_service.launch.owner import start_owners
from ps_service.launch.processes import Processes
from ps_service.launch.trainers import environment_of
from ps_wire.runtime.noop import noop

PATIENCE: Final = 300.0
"""Seconds to wait for an answer: an owner's first table compiles its code, for a minute and more on a busy machine."""

# Tables compile what they use. Two trainers and two owners have a thread each.
_FLAGS: Final = ("--no-compile-tables", "--torch-threads", "1", "--log-level", "error", "--log-format", "text")


def environment() -> dict[str, str]:
    """The variables of a program of the examples, which finds them whatever directory it is started from."""
    root = str(Path(examples.__file__).resolve().parents[1])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def arguments_of(settings: Any) -> list[str]:
    """The arguments of a command line that is parsed into these settings, a dataclass; None is left out."""
    given = {f"--{each.name.replace('_', '-')}": getattr(settings, each.name) for each in fields(settings)}
    return [
        part
        for flag, value in given.items()
        if value is not None
        for part in (flag, *(value if isinstance(value, tuple) else [str(value)]))
    ]


async def addresses_of_owners(processes: Processes, count: int, *imports: str) -> list[str]:
    """Starts owners that host the classes of some modules, if any, and returns their addresses when they serve. Raises
    `ProcessFailed` if one ends before."""
    offered = ["--import", ",".join(imports)] if imports else []
    owners = await start_owners(processes, count, [*_FLAGS, *offered], environment())
    return [each.address for each in owners]


def tell(what: str, number: float) -> None:
    """Tells the program that has started this trainer a number: a line of JSON on standard output."""
    print(json.dumps([what, number]), flush=True)


class Trainers:
    """Trainers at work.

    Args:
        processes: Starts them.
        addresses: The owners that `tc.connect()` finds in them.
        count: How many there are.
        command: The module that each of them runs, and its arguments.
        hear: Gets the rank of a trainer, and what that has told.
    """

    def __init__(
        self,
        processes: Processes,
        addresses: Sequence[str],
        count: int,
        command: Sequence[str],
        hear: Callable[[int, str, float], object] = noop,
    ) -> None:
        def taking(rank: int) -> Callable[[bytes], object]:
            return lambda line: hear(rank, *json.loads(line))

        self._started = [
            processes.start(
                f"trainer {rank}",
                [sys.executable, "-m", *command],
                environment_of(rank, count, addresses, environment=environment()),
                taking(rank),
            )
            for rank in range(count)
        ]

    def have_finished(self) -> bool:
        """Whether all have ended. Raises `ProcessFailed` if one did so with an error."""
        for each in self._started:
            if each.code:
                raise each.failed("")
        return all(each.code == 0 for each in self._started)

    async def finish(self) -> None:
        """Waits until all have ended. Raises `ProcessFailed` if one does so with an error."""
        for each in self._started:
            await each.wait()
        self.have_finished()
