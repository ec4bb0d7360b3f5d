"""Members: the processes of the example, which come together and leave together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType

import examples
from examples.pipeline import shards
from examples.pipeline.owner import MEMBERS, SHARDS, TRAINER
from trainer_client import rpc

_ROOT = Path(examples.__file__).resolve().parents[1]


@contextmanager
def together(offered: ModuleType = shards) -> Iterator[tuple[str, ...]]:
    """While the block runs, this process is the trainer of a group with two owners; gives the owners' names.

    However the block ends, so have the other processes afterwards.

    Args:
        offered: Its classes can be made on the owners, and its functions be called everywhere.

    Raises:
        DeadlineExceededError: An owner did not come.
        RuntimeError: One did not end well.
    """
    rpc.init_rpc(TRAINER, allow=[offered])
    try:
        with ExitStack() as stack:
            owners = [stack.enter_context(_owner(name, rpc.address(), offered.__name__)) for name in SHARDS]
            rpc.barrier(MEMBERS)
            yield SHARDS
            rpc.shutdown(group=MEMBERS)
            for name, owner in zip(SHARDS, owners, strict=True):
                if code := owner.wait():
                    raise RuntimeError(f"{name} ended with code {code}")
    except BaseException:
        with suppress(RuntimeError):  # it has left
            rpc.shutdown(graceful=False)
        raise


@contextmanager
def _owner(name: str, directory: str, allow: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts an owner; it has ended when the block is left."""
    command = [sys.executable, "-m", "examples.pipeline.owner", name, "--directory", directory, "--allow", allow]
    # It is found whatever directory the example was started from.
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    # In a session of its own a terminal's Ctrl-C reaches only this process, which then ends it.
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, start_new_session=True) as owner:
        try:
            yield owner
        except BaseException:
            owner.kill()
            raise
