"""Tests that forked workers live, do not affect their parent's connections, and never wait for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import aclosing

import pytest

import trainer_client as tc
from ps_service.server import Server
from ps_wire.shared_memory.hosts import host_id
from tests.conftest import ROOT
from tests.forking.process import Forking

pytestmark = pytest.mark.skipif(not host_id(), reason="shared memory needs Linux")


async def told(forking: Forking, owner: Server, what: str) -> list[str]:
    """What the job found, line by line; it must end by itself and in order."""
    variables = {name: value for name, value in os.environ.items() if "GRPC" not in name}
    command = ("tests.integration.forking_job", owner.address, what)
    async with aclosing(await forking.begin(*command, errors=True, variables=variables)) as job:
        out, errors = await job.communicate()
    assert job.returncode == 0, errors.decode()
    assert "Traceback" not in errors.decode() and "Warning" not in errors.decode(), errors.decode()
    return out.decode().splitlines()


async def test_the_workers_of_a_data_loader_live(forking: Forking, owner: Server) -> None:
    assert await told(forking, owner, "loaders") == ["equal True"]


async def test_a_child_is_told_at_once_that_its_parent_s_client_is_of_no_use(forking: Forking, owner: Server) -> None:
    expected = [
        "call ClosedError soon",
        "pending ClosedError soon",
        "context ClosedError soon",
        "optimizer ClosedError soon",
        "gather ClosedError soon",
        "connect UnavailableError soon",
        "child ended with 0",
        "parent 1 None through 100000.0",
        "sessions 1 objects 2 shared_memory",
    ]
    lines = await told(forking, owner, "blocking")
    assert lines == [*expected[:-1], expected[-1] + " 1", *expected[:-1], expected[-1] + " 0"]
    lines = await told(forking, owner, "awaiting")
    assert lines == ["call ClosedError soon", "child ended with 0", "parent 1 2", "sessions 1"] * 2
    async with tc.connect(owner.address) as ps:
        status = await ps.status()
        assert (status.sessions, len(status.objects)) == (1, 0)


async def test_a_child_that_was_forked_before_may_connect_and_later_ones_keep_their_tensors(
    forking: Forking, owner: Server
) -> None:
    connected = ["child 3", "child ended with 0", "parent 4"]
    assert await told(forking, owner, "children") == [*connected, "child sees 7.0 7.0"]


WATCH = """
import os, sys
def found():
    print(os.environ.get('GRPC_ENABLE_FORK_SUPPORT'), flush=True)
    os._exit(0)
class Finder:
    def find_spec(self, name, *_):
        if name in ('grpc', 'torch'):
            found()
sys.meta_path.insert(0, Finder())
"""
"""Prints the variable when gRPC is about to be imported, or torch, which takes long and comes before it."""


@pytest.mark.parametrize("package", ["trainer_client", "ps_service"])
def test_both_sides_switch_grpc_s_support_for_forks_off_before_they_import_it(package: str) -> None:
    assert printed(f"{WATCH}\nimport {package}\nfound()") == "0"


def test_fork_support_of_grpc_stays_on_if_the_environment_enables_it() -> None:
    program = "import ps_wire, os; print(os.environ['GRPC_ENABLE_FORK_SUPPORT'])"
    assert printed(program) == "0"
    assert printed(program, GRPC_ENABLE_FORK_SUPPORT="1") == "1"


def printed(program: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if "GRPC" not in name} | variables
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
