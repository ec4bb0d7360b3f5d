"""Ray's head is away, and comes back: owners and trainers go on meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

import ray

import ps_service.ray
from ps_wire.supervisors import NAMESPACE, supervisor_name
from tests.conftest import ROOT
from tests.ray.machines import LABELS, Machines, waited
from tests.ray.training import Trainers


@pytest.fixture
def redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The store in which Ray's head keeps what it knows."""
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed, without which Ray's head cannot come back")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        waited(lambda: _listens(port))
        monkeypatch.setenv("RAY_REDIS_ADDRESS", f"127.0.0.1:{port}")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        yield
        process.kill()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.fixture
def machines_with_store(redis: None) -> Iterator[Machines]:
    machines = Machines()
    yield machines
    machines.close()


async def test_owners_and_trainers_go_on_without_it(
    machines_with_store: Machines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machines = machines_with_store
    cluster = ps_service.ray.start(
        "ps", 2, data_dir=tmp_path / "shared", labels=LABELS, flags=["--no-compile-tables", "--drain-seconds", "5"]
    )
    before = {each.name: each for each in cluster.status()}
    trainers = Trainers()
    try:
        waited(lambda: trainers.have_made([5, 5]))
        since, made = time.monotonic(), trainers.steps
        machines.kill_head()
        waited(lambda: trainers.have_made([each + 50 for each in made]))
        told = [f"Ray's head is away: longest pause {trainers.longest_pause(since):.1f} s"]
        # Its supervisor starts it again, and trainers find it, without the head.
        since = time.monotonic()
        os.kill(before["ps1"].pid, signal.SIGKILL)
        made = trainers.steps
        waited(lambda: trainers.last_connected(since) and trainers.have_made([each + 5 for each in made]))
        told.append(f"SIGKILL of an owner meanwhile: longest pause {trainers.longest_pause(since):.1f} s")
        since = time.monotonic()
        machines.start_head()
        after = {each.name: each for each in cluster.status()}
        assert {each.state for each in after.values()} == {"serving"}
        assert after["ps0"].pid == before["ps0"].pid and after["ps1"].pid != before["ps1"].pid
        told.append(f"Ray's head is back: longest pause {trainers.longest_pause(since):.1f} s")
        with capsys.disabled():
            print("", *told, sep="\n")
        # It restarts supervisors as before.
        ray.kill(ray.get_actor(supervisor_name("ps", "ps1"), namespace=NAMESPACE), no_restart=False)
        waited(lambda: cluster.status()[1].moves == 1 and cluster.status()[1].state == "serving")
        made = trainers.steps
        waited(lambda: trainers.have_made([each + 5 for each in made]))
    finally:
        trainers.stop()
    cluster.down()
    await trainers.check()
