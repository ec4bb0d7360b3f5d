"""Tests how many cores this process may use, and that compute threads share them."""

from __future__ import annotations

import os
from contextlib import aclosing
from pathlib import Path

import pytest

from ps_service.execution import cores
from tests.forking.process import Forking
from tests.owner_processes import ENVIRONMENT


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


async def test_compute_threads_use_that_number(forking: Forking) -> None:
    kept = {name: value for name, value in ENVIRONMENT.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    program = "tests.ps_service.execution.compute_threads"
    async with aclosing(await forking.begin(program, errors=True, variables=kept)) as process:
        _, error = await process.communicate()
    assert process.returncode == 0, error.decode()
