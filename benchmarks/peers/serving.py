"""The two roles of a peer's program: an owner that tells its address, and a trainer that serves the harness."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from benchmarks.leash import end_with_parent
from benchmarks.trainer import Config, Side, Wire, serve


def run(owner: Callable[[list[str]], AbstractContextManager[str]], trainer: Callable[[Config], Side]) -> None:
    """Runs the role that the first argument of the command line names.

    Args:
        owner: Serves during its block and gives its address; takes the other arguments of the command line.
        trainer: Makes the trainer's side.
    """
    # Hivemind forks processes that would outlive a killed harness.
    os.register_at_fork(after_in_child=end_with_parent)
    role, *arguments = sys.argv[1:]
    wire = Wire()
    if role == "owner":
        with owner(arguments) as address:
            wire.say(f"serving on {address}")
            sys.stdin.read()
    else:
        serve(wire, trainer(Config.read(next(iter(wire)))))
