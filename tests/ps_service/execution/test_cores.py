"""Tests how many cores this process may use, and that compute threads share them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ps_service.execution import cores
from tests.owner_processes import ENVIRONMENT, ROOT

REPORT = """
import asyncio
import torch
from ps_service.cli import engines
from ps_service.config import load
from ps_service.execution.cores import usable_cores
from tests.ps_service.execution.pools import run

def in_use():
    # An operation large enough for a team of threads, in a thread that may never have run torch before.
    torch.randn(3_000_000).mul_(2.0)
    return torch.get_num_threads()

async def found(engine):
    return {await run(engine.compute, in_use) for _ in range(3)}

async def shared(engine):
    assert await run(engine.compute, in_use) == 1, "nothing was long"
    engine.compute.cores.note(60.0)
    assert await found(engine) == {usable_cores()}
    assert torch.get_num_threads() == 1, "the number of the event loop"

engine = engines.engine_of(load(threads=2, torch_threads=3))
assert asyncio.run(found(engine)) == {3}
engine.close()
for threads, expected in ((64, 1), (1, usable_cores())):
    engine = engines.engine_of(load(threads=threads))
    assert asyncio.run(found(engine)) == {expected}
    engine.close()
engine = engines.engine_of(load(threads=64, share_cores=True))
asyncio.run(shared(engine))
engine.close()
"""


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 4, 6}, raising=False)


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({}, 4),
        ({"cpu.max": "max 100000\n"}, 4),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "800000 100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu.max": "nonsense"}, 4),
    ],
)
def test_the_cores_are_those_of_the_affinity_and_of_the_quota(
    tmp_path: Path, files: dict[str, str], usable: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores.usable_cores(tmp_path) == usable


@pytest.mark.usefixtures("four_cores")
def test_torch_gets_a_share_of_the_cores_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cores, "_quota", lambda cgroup: None)
    assert [cores.torch_threads_of(threads) for threads in (1, 2, 3, 4, 8)] == [4, 2, 1, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert cores.torch_threads_of(1) is None


def test_long_work_shares_the_cores_and_short_work_has_one() -> None:
    given: list[int] = []
    shared = cores.SharedCores(given.append, 4)
    shared.take(1)
    shared.note(1.0)
    for running in (1, 1, 2, 3, 8, 1):
        shared.take(running)
    for _ in range(100):
        shared.note(0.001)
    shared.take(1)
    assert given == [1, 4, 2, 1, 4, 1], "a thread is told of changes only"


def test_compute_threads_use_that_number() -> None:
    kept = {name: value for name, value in ENVIRONMENT.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [sys.executable, "-c", REPORT]
    ran = subprocess.run(command, env=kept, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
