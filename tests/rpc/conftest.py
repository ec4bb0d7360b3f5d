"""A group of four processes: the one of the tests, worker0, and worker1 to worker3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.forking.process import Forking
from tests.rpc import fitting, leaves, raising, sharing, situations, tutorials
from trainer_client import rpc
from trainer_client.rpc.current import agent

WORKERS = ("worker1", "worker2", "worker3")


@pytest.fixture(scope="package", autouse=True)
def group(forking: Forking) -> Iterator[None]:
    """Joins worker0, starts the others, and ends everything afterwards."""
    rpc.init_rpc(
        "worker0", directory="self", allow=[situations, raising, sharing, leaves, fitting, tutorials], timeout=30.0
    )
    with ExitStack() as stack:
        begun = [forking.start("tests.rpc.member", name, agent().server.address) for name in WORKERS]
        members = [stack.enter_context(process) for process in begun]
        for name, process in zip(WORKERS, members, strict=True):
            assert process.stdout.readline() == f"{name} is there\n"
        yield
        for process in members:
            process.stdin.close()
        codes = [process.wait(30) for process in members]
        rpc.shutdown(timeout=20)
        assert codes == [0, 0, 0]
