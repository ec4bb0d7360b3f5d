"""Tests that a peer process is reported as running, stopped or ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ps_wire.shared_memory.hosts import host_id
from ps_wire.shared_memory.peers import PeerProcess, State

pytestmark = pytest.mark.skipif(not host_id(), reason="/proc is Linux's")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    # Its name has spaces and parentheses, which /proc shows as they are.
    program = "open('/proc/self/comm', 'w').write('a) T (b c'); print('x', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield process
        process.kill()


def until(process: PeerProcess, state: State) -> None:
    """Signals are delivered soon, and not at once."""
    last = time.monotonic() + 20
    while process.state is not state:
        assert time.monotonic() < last


def test_a_process_is_stopped_and_continued_and_gone(child: subprocess.Popen[bytes]) -> None:
    process = PeerProcess(child.pid)
    assert process.state is State.ALIVE
    child.send_signal(signal.SIGSTOP)
    until(process, State.STOPPED)
    child.send_signal(signal.SIGCONT)
    until(process, State.ALIVE)
    child.kill()
    # Also while its exit code has not been collected.
    until(process, State.GONE)
    child.wait()
    assert process.state is State.GONE


def test_another_process_of_the_same_number_is_not_the_same(child: subprocess.Popen[bytes]) -> None:
    process = PeerProcess(child.pid)
    process.pid = os.getpid()
    assert process.state is State.GONE


@pytest.mark.parametrize("pid", [0, -1, 1 << 30])
def test_a_process_of_another_namespace_cannot_be_seen(pid: int) -> None:
    with pytest.raises(LookupError, match="cannot be seen"):
        PeerProcess(pid)
