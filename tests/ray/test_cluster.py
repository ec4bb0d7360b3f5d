"""Clusters of owners on Ray: where they are placed, what they tell, who finds them, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import ps_service.ray
import trainer_client as tc
from ps_wire.errors import NameConflictError, UnavailableError
from tests.conftest import ROOT
from tests.ray import trainers
from tests.ray.machines import LABELS, Machines
from trainer_client.transport.ray_owners import on_ray

FLAGS = ("--no-compile-tables",)


def test_owners_are_spread_and_described_and_their_state_is_kept(machines: Machines, tmp_path: Path) -> None:
    cluster = ps_service.ray.start("ps", 2, data_dir=tmp_path, labels=LABELS, memory=1 << 20, flags=FLAGS)
    first, second = cluster.status()
    assert (first.name, second.name) == ("ps0", "ps1")
    assert {first.state, second.state} == {"serving"} and first.node != second.node
    assert {first.host, second.host} == {"127.0.0.2", "127.0.0.3"} and first.address.startswith(first.host)
    # Ray's workers would run at 15 more.
    assert {first.niceness, second.niceness} == {os.getpriority(os.PRIO_PROCESS, 0)}
    with pytest.raises(NameConflictError, match="a cluster 'ps' runs already"):
        ps_service.ray.start("ps", 1)
    with tc.connect(directory="ray:ps") as ps:
        assert ps.owners == ["ps0", "ps1"]
        ps.module("torch.nn.Linear", 2, 2, name="kept", seed=1)
    cluster.down()
    assert {each.parent.name for each in tmp_path.glob("*/checkpoint-*")} == {"ps0", "ps1"}
    with pytest.raises(UnavailableError, match="no cluster 'ps' runs on this Ray"):
        ps_service.ray.Cluster("ps")
    # One of the same name goes on with it, and trainers that knew the earlier one find it.
    cluster = ps_service.ray.start("ps", 2, data_dir=tmp_path, labels=LABELS, flags=FLAGS)
    with tc.connect(directory="ray:ps") as ps:
        assert not ps.module("torch.nn.Linear", 2, 2, name="kept", seed=1).was_made
    cluster.down()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")
def test_tasks_actors_and_workers_of_ray_train_find_them(machines: Machines, tmp_path: Path) -> None:
    cluster = ps_service.ray.start("ps", 2, labels=LABELS, flags=FLAGS)
    try:
        assert ray.get(ray.remote(num_cpus=0)(trainers.stepped).remote("net")) == {"ps0": 1}
        blocking = ray.remote(num_cpus=0)(trainers.Blocking).remote()
        assert ray.get(blocking.step.remote("net")) == {"ps0": 2}
        asynchronous = ray.remote(num_cpus=0)(trainers.Asynchronous).remote()
        assert ray.get(asynchronous.owners.remote()) == ["ps0", "ps1"]
        assert ray.get(asynchronous.some.remote()) == ["ps1"]
        for actor in (blocking, asynchronous):
            ray.kill(actor)
        trainer = TorchTrainer(
            trainers.train_worker,
            train_loop_config={"steps": 2},
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(storage_path=str(tmp_path)),
        )
        trainer.fit()
        assert trainers.stepped("train") == {"ps0": 5}
    finally:
        cluster.down()


def test_strict_owners_are_on_different_nodes_or_none_is_started(machines: Machines) -> None:
    with pytest.raises(UnavailableError, match="Ray has no 3 nodes with"):
        ps_service.ray.start("ps", 3, labels=LABELS, strict=True, wait=2.0)
    cluster = ps_service.ray.start("ps", 2, labels=LABELS, strict=True, flags=FLAGS)
    nodes = {each.node for each in cluster.status()}
    cluster.down()
    assert len(nodes) == 2


def test_owners_that_cannot_start_are_told(machines: Machines) -> None:
    with pytest.raises(UnavailableError, match=r"ps0 is \w+: it has ended with exit code 2 before it served"):
        ps_service.ray.start("ps", 1, ["there.is.no.such.module"], wait=15.0)
    connecting = tc.connect("ps0", directory="ray:ps", connect_timeout=0.5)
    with pytest.raises(UnavailableError, match=r"is being started, or moves|does not answer|started again"):
        connecting.__enter__()
    ps_service.ray.Cluster("ps").down()


def test_owners_without_a_node_are_told_and_can_be_ended(machines: Machines) -> None:
    with pytest.raises(UnavailableError, match="ps0 is placing: Ray starts its supervisor when a node has room"):
        ps_service.ray.start("ps", 1, labels={"role": "nobody"}, wait=0.0)
    with pytest.raises(UnavailableError, match="'ps/ps0' does not answer within"):
        on_ray("ray:ps").names()  # type: ignore[union-attr]
    ps_service.ray.Cluster("ps").down()
    with pytest.raises(UnavailableError, match="no cluster 'ps'"):
        ps_service.ray.Cluster("ps")


async def test_a_cluster_that_is_started_later_is_waited_for(machines: Machines) -> None:
    with pytest.raises(UnavailableError, match="no cluster 'ps' runs on this Ray: `ps-service ray up --name ps`"):
        await tc.connect(directory="ray:ps", connect_timeout=0.1)
    connecting = asyncio.ensure_future(tc.connect(directory="ray:ps").__aenter__())
    cluster = await asyncio.to_thread(ps_service.ray.start, "ps", 1, flags=FLAGS)
    ps = await connecting
    assert ps.owners == ["ps0"]
    await ps.close()
    await asyncio.to_thread(cluster.down)


def test_the_command_line_starts_shows_and_ends_them(machines: Machines, tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "ps_service", "ray", *arguments]
        environment = {**os.environ, "RAY_ADDRESS": machines.raylets.address}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        return done.returncode, done.stdout + done.stderr

    place = ("--data-dir", str(tmp_path), "--label", "role=owner", "--memory", "1MiB", "--cpus", "0.5")
    code, said = run("up", "--name", "cli", "--owners", "1", *place, "--", *FLAGS)
    assert code == 0 and "cli0" in said and "serving" in said, said
    code, said = run("status", "--name", "cli", "--json")
    (state,) = json.loads(said[said.index("[\n") :])
    assert code == 0 and (state["name"], state["state"]) == ("cli0", "serving")
    assert run("down", "--name", "cli")[0] == 0
    code, said = run("status", "--name", "cli")
    assert code == 2 and "no cluster 'cli' runs on this Ray" in said
    assert (tmp_path / "cli0").is_dir()
