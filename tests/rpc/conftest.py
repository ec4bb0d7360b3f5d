"""A group of four processes: the one of the tests, worker0, and worker1 to worker3."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.conftest import ROOT
from tests.rpc import situations
from trainer_client import rpc
from trainer_client.rpc.current import agent

WORKERS = ("worker1", "worker2", "worker3")


@pytest.fixture(scope="package", autouse=True)
def group() -> Iterator[None]:
    """Joins worker0, starts the others, and ends everything afterwards."""
    rpc.init_rpc("worker0", allow=[situations], timeout=30.0)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        members = []
        for name in WORKERS:
            command = [sys.executable, "-m", "tests.rpc.member", name, agent().server.address]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
            )
            members.append(stack.enter_context(process))
        for name, process in zip(WORKERS, members, strict=True):
            assert process.stdout is not None
            assert process.stdout.readline() == f"{name} is there\n"
        yield
        for process in members:
            assert process.stdin is not None
            process.stdin.close()
        codes = [process.wait(30) for process in members]
        rpc.shutdown(timeout=20)
        assert codes == [0, 0, 0]
