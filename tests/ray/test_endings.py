"""Each way in which an owner on Ray may end, while trainers train: what is lost, and how long it takes.

One cluster and two trainers go through all of them, one after the other. At the end, the owners must have what the same
steps give on owners that nothing happens to, bit by bit.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("ray")

import ray
from ray._private.state import state

import ps_service.ray
from ps_service.ray import ray_state
from ps_service.ray.owner_state import OwnerState
from ps_wire.supervisors import NAMESPACE, supervisor_name
from tests.ray.machines import LABELS, Machines, waited
from tests.ray.training import Trainers

STEPS = 5
"""Steps that have to follow before the next ending."""


class Row(NamedTuple):
    """One ending; seconds from it on. `knows` is None if Ray is not concerned."""

    ending: str
    knows: float | None
    connected: float
    pause: float
    repeated: int


class Endings:
    """Ends an owner in one way after the other."""

    def __init__(self, machines: Machines, cluster: ps_service.ray.Cluster, trainers: Trainers) -> None:
        self.machines = machines
        self.cluster = cluster
        self.trainers = trainers
        self.rows: list[Row] = []

    def owner(self, name: str = "ps1") -> OwnerState:
        return next(each for each in self.cluster.status() if each.name == name)

    def record(self, ending: str, end: Callable[[OwnerState], object], knows: Callable[[], object] | None) -> None:
        """Ends ps1 by a function, and waits until it serves again and the trainer has gone on."""
        before, repeated = {each.name: each for each in self.cluster.status()}, self.trainers.repeated
        since = time.monotonic()
        end(before["ps1"])
        known = None if knows is None else waited(knows) - since
        waited(lambda: self._is_back(before["ps1"]))
        made = self.trainers.steps
        waited(lambda: self.trainers.have_made([each + STEPS for each in made]))
        row = Row(
            ending, known, self.trainers.last_connected(since), self.trainers.longest_pause(since),
            self.trainers.repeated - repeated,
        )  # fmt: skip
        self.rows.append(row)

    def _is_back(self, before: OwnerState) -> bool:
        states = self.cluster.status()
        return all(each.state == "serving" for each in states) and self.owner().pid != before.pid

    # Endings

    def signal_owner(self, number: signal.Signals) -> None:
        self.record(f"{number.name} of the owner", lambda owner: os.kill(owner.pid, number), None)

    def signal_actor(self, number: signal.Signals) -> None:
        pid = self._actor()["Pid"]
        self.record(f"{number.name} of its actor", lambda _: os.kill(pid, number), self._knows_actor())

    def ray_kill(self) -> None:
        actor = ray.get_actor(supervisor_name("ps", "ps1"), namespace=NAMESPACE)
        self.record("ray.kill of its actor", lambda _: ray.kill(actor, no_restart=False), self._knows_actor())

    def kill_raylet(self) -> None:
        self._lose_node("SIGKILL of its raylet", lambda owner: self.machines.kill_raylet(owner.node))

    def cut_power(self) -> None:
        def cut(owner: OwnerState) -> None:
            self.machines.cut_power(owner.node, [each.pid for each in here if each.node == owner.node])

        here = self.cluster.status()
        self._lose_node("all processes of its node at once", cut)

    def drain(self) -> None:
        node = self.owner().node
        self.record("its node is drained", lambda _: self.machines.drain(node), lambda: ray_state.is_draining(node))
        assert node not in {each.node for each in self.cluster.status()}
        self.machines.forget(node)
        self.machines.add()

    def _lose_node(self, ending: str, end: Callable[[OwnerState], object]) -> None:
        node = self.owner().node
        self.record(ending, end, lambda: self.machines.is_known_dead(node))
        assert node != self.owner().node
        self.machines.forget(node)
        self.machines.add()

    def _actor(self) -> dict[str, object]:
        actor = ray.get_actor(supervisor_name("ps", "ps1"), namespace=NAMESPACE)
        return dict(state.actor_table(actor._actor_id.hex()))

    def _knows_actor(self) -> Callable[[], bool]:
        before = self._actor()["NumRestarts"]
        return lambda: self._actor()["NumRestarts"] != before

    def tell(self) -> None:
        print("\n\n| ending | Ray knows after | all owners connected after | longest pause | passes repeated |")
        print("|---|---|---|---|---|")
        for row in self.rows:
            known = "" if row.knows is None else f"{row.knows:.1f} s"
            print(f"| {row.ending} | {known} | {row.connected:.1f} s | {row.pause:.1f} s | {row.repeated} |")
        print(f"\n{sum(self.trainers.steps)} steps of two trainers; {self.trainers.repeated} passes were repeated")


async def test_nothing_is_lost_however_an_owner_ends(
    machines: Machines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ps_service.ray.start(
        "ps", 2, data_dir=tmp_path / "shared", labels=LABELS, flags=["--no-compile-tables", "--drain-seconds", "5"]
    )
    trainers = Trainers()
    endings = Endings(machines, cluster, trainers)
    try:
        waited(lambda: trainers.have_made([STEPS, STEPS]))
        endings.signal_owner(signal.SIGKILL)
        endings.signal_owner(signal.SIGTERM)
        endings.ray_kill()
        endings.signal_actor(signal.SIGTERM)
        endings.signal_actor(signal.SIGKILL)
        endings.kill_raylet()
        endings.cut_power()
        endings.drain()
    finally:
        with capsys.disabled():
            endings.tell()
        trainers.stop()
    cluster.down()
    await trainers.check()
