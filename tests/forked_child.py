"""A forked child that only exists, for tests of what it inherits."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def forked_child() -> Iterator[None]:
    """A child of this process is there during the block, and has done what it does after a fork."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if not (child := os.fork()):
            ours.close()
            theirs.send(b"runs")
            theirs.recv(1)  # until the parent has closed its end
            os._exit(0)
        theirs.close()
        assert ours.recv(4) == b"runs"
        yield
    assert os.waitpid(child, 0)[1] == 0
