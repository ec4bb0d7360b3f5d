"""Members: the processes of the example, which come together and leave together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import examples
from examples.word_language_model.ps import PS, TRAINER
from trainer_client import rpc

_ROOT = Path(examples.__file__).resolve().parents[1]


@contextmanager
def together(seed: int) -> Iterator[str]:
    """While the block runs, this process is the trainer of a group, and another is its owner; gives the owner's name.

    However the block ends, so has the other process afterwards.

    Args:
        seed: Of the dropout there.

    Raises:
        DeadlineExceededError: The owner did not come.
        RuntimeError: It did not end well.
    """
    rpc.init_rpc(TRAINER)
    try:
        with _owner(rpc.address(), seed) as owner:
            rpc.barrier([PS, TRAINER])
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
    # It is found whatever directory the example was started from.
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    # In a session of its own a terminal's Ctrl-C reaches only this process, which then ends it.
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, start_new_session=True) as owner:
        try:
            yield owner
        except BaseException:
            owner.kill()
            raise


def _leave() -> None:
    """Leaves the group, if this process is still in it, without waiting for the other members."""
    with suppress(RuntimeError):
        rpc.shutdown(graceful=False)
