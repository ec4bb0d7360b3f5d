"""Starts the processes of the example, and ends them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from examples.jobs import environment
from examples.members import gather
from examples.word_language_model.ps import PS, TRAINER
from trainer_client import rpc


@contextmanager
def together(seed: int) -> Iterator[str]:
    """Starts an owner and joins its group during a block; yields the owner's name.

    The owner has ended after the block, however it ends.

    Args:
        seed: Seed of the dropout on the owner.

    Raises:
        DeadlineExceededError: The owner did not join in time.
        RuntimeError: The owner ended with an error.
    """
    rpc.init_rpc(TRAINER, directory="self")
    try:
        with _owner(rpc.address(), seed) as owner:
            gather([PS, TRAINER])
            yield PS
            rpc.shutdown(group=[PS, TRAINER])
            if code := owner.wait():
                raise RuntimeError(f"{PS} ended with code {code}")
    except BaseException:
        _leave()
        raise


@contextmanager
def _owner(directory: str, seed: int) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the owner; its process has ended when the block ends."""
    command = [sys.executable, "-m", "examples.word_language_model.ps", "--directory", directory, "--seed", str(seed)]
    # In a session of its own a terminal's Ctrl-C reaches only this process, which then ends it.
    with subprocess.Popen(command, env=environment(), start_new_session=True) as owner:
        try:
            yield owner
        except BaseException:
            owner.kill()
            raise


def _leave() -> None:
    """Leaves the group, if this process is still in it, without waiting for the other members."""
    with suppress(RuntimeError):
        rpc.shutdown(graceful=False)
