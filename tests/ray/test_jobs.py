"""A job that starts owners, and brings along the modules that they host."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("aiohttp_cors", reason="jobs need ray[default]")

import ray
import torch

import ps_service.ray
import trainer_client as tc
from examples.raylets import Machines
from ps_wire.errors import UnavailableError
from ps_wire.supervisors import NAMESPACE, supervisor_name
from tests.conftest import ROOT
from tests.ray.machines import waited

MODELS = """
import torch
from ps_service import hosted

@hosted
class Doubling(torch.nn.Module):
    def forward(self, x):
        return x * 2
"""


def ran(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=200)


def states() -> list[tuple[int, str]]:
    """How often the owners of the job have moved, and what they do; none before the job has begun."""
    try:
        return [(each.moves, each.state) for each in ps_service.ray.Cluster("job").status()]
    except UnavailableError:
        return []


async def test_a_job_starts_owners_with_its_own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_in_the_job.py").write_text(MODELS)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with Machines(takes_jobs=True) as machines:
        machines.add()
        submit = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--no-wait", "--address", machines.url]
        up = [sys.executable, "-m", "ps_service", "ray", "up", "--name", "job", "--import", "only_in_the_job"]
        command = [*submit, "--working-dir", ".", "--", *up, "--", "--no-compile-tables"]
        done = await asyncio.to_thread(ran, command, tmp_path)
        while "No available agent" in done.stderr:  # the head has started a moment ago
            done = await asyncio.to_thread(ran, command, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        # The owner outlives the job, also when Ray starts it again.
        for moves in (0, 1):
            await asyncio.to_thread(waited, lambda moves=moves: states() == [(moves, "serving")])
            async with tc.connect(directory="ray:job") as ps:
                net = await ps.module("only_in_the_job.Doubling")
                assert (await net(torch.ones(2))).tolist() == [2.0, 2.0]
            if not moves:
                ray.kill(ray.get_actor(supervisor_name("job", "job0"), namespace=NAMESPACE), no_restart=False)
        ps_service.ray.Cluster("job").down()
