"""Starts the processes of the example, and ends them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import ModuleType

from examples.jobs import environment
from examples.members import gather
from examples.pipeline import shards
from examples.pipeline.owner import MEMBERS, SHARDS, TRAINER
from trainer_client import rpc


@contextmanager
def together(offered: ModuleType = shards) -> Iterator[tuple[str, ...]]:
    """Starts two owners and joins their group during a block; yields the owners' names.

    The owners have ended after the block, however it ends.

    Args:
        offered: The module of the hosted classes and remote functions.

    Raises:
        DeadlineExceededError: An owner did not join in time.
        RuntimeError: An owner ended with an error.
    """
    rpc.init_rpc(TRAINER, directory="self", allow=[offered])
    try:
        with ExitStack() as stack:
            owners = [stack.enter_context(_owner(name, rpc.address(), offered.__name__)) for name in SHARDS]
            gather(MEMBERS)
            yield SHARDS
            rpc.shutdown(group=MEMBERS)
            for name, owner in zip(SHARDS, owners, strict=True):
                if code := owner.wait():
                    raise RuntimeError(f"{name} ended with code {code}")
    except BaseException:
        with suppress(RuntimeError):  # this process has left already
            rpc.shutdown(graceful=False)
        raise


@contextmanager
def _owner(name: str, directory: str, allow: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts an owner for a block; it has ended afterwards."""
    command = [sys.executable, "-m", "examples.pipeline.owner", name, "--directory", directory, "--allow", allow]
    # In a session of its own a terminal's Ctrl-C reaches only this process, which then ends it.
    with subprocess.Popen(command, env=environment(), start_new_session=True) as owner:
        try:
            yield owner
        except BaseException:
            owner.kill()
            raise
