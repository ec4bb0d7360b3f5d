"""A Ray cluster on this machine, whose nodes have addresses of their own, and stand for machines."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import psutil
import ray
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster as Raylets

MIB: Final = 1 << 20
LABELS: Final = {"role": "owner"}
DRAINED_BY_PREEMPTION: Final = 2
"""The reason for which a cloud takes a node away."""

SECONDS: Final = 120.0
"""How long anything may take at most, on a busy machine."""


class Machines:
    """A head that runs nothing, and nodes for owners. `close` ends all of it. A head can come back only where
    RAY_REDIS_ADDRESS names a store for what it knows."""

    def __init__(self, nodes: int = 2) -> None:
        self._nodes: dict[str, Any] = {}
        self._made = 1
        self.raylets = Raylets(initialize_head=True, head_node_args=_arguments(num_cpus=0))
        ray.init(address=self.raylets.address, log_to_driver=False, logging_level="ERROR")
        for _ in range(nodes):
            self.add()

    def add(self) -> str:
        """One more node, with room for two owners and the tests' own workers. Returns its id."""
        self._made += 1
        node = self.raylets.add_node(**_arguments(num_cpus=3), node_ip_address=f"127.0.0.{self._made}", labels=LABELS)
        self._nodes[node.node_id] = node
        return str(node.node_id)

    def is_known_dead(self, node: str) -> bool:
        """Whether Ray knows that a node is gone."""
        return any(each["NodeID"] == node and not each["Alive"] for each in ray.nodes())

    def drain(self, node: str) -> None:
        """Has Ray drain a node, as a cloud does that takes it away soon."""
        deadline = int((time.time() + SECONDS) * 1000)
        accepted, why = GcsClient(address=self.raylets.address).drain_node(
            node, DRAINED_BY_PREEMPTION, "test", deadline
        )
        assert accepted, why

    def kill_raylet(self, node: str) -> None:
        """Ends the raylet of a node by SIGKILL: the workers notice, and end."""
        raylet = self._raylet(node)
        raylet.kill()
        raylet.wait()  # workers take a process that nobody has waited for for one that runs

    def cut_power(self, node: str, owners: list[int]) -> None:
        """Ends all processes of a node at once, with the owners on it."""
        raylet = self._raylet(node)
        for pid in [*(each.pid for each in psutil.Process(raylet.pid).children(recursive=True)), raylet.pid, *owners]:
            _kill(pid)
        raylet.wait()

    def kill_head(self) -> None:
        """Ends the server of Ray's head."""
        self.raylets.head_node.kill_gcs_server()

    def start_head(self) -> None:
        """Starts it again, at its address."""
        self.raylets.head_node.start_gcs_server()

    def forget(self, node: str) -> None:
        """Ends what is left of a node that is gone."""
        self.raylets.remove_node(self._nodes.pop(node), allow_graceful=False)

    def close(self) -> None:
        ray.shutdown()
        self.raylets.shutdown()

    def _raylet(self, node: str) -> subprocess.Popen[bytes]:
        return self._nodes[node].all_processes["raylet"][0].process


def waited(so: Callable[[], Any], pause: float = 0.02) -> float:
    """Waits until something is so, and returns when it was. Raises `TimeoutError`."""
    ends = time.monotonic() + SECONDS
    while not so():
        if time.monotonic() > ends:
            raise TimeoutError("it has not come to be in time")
        time.sleep(pause)
    return time.monotonic()


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _arguments(num_cpus: int) -> dict[str, Any]:
    return {"num_cpus": num_cpus, "object_store_memory": 80 * MIB, "include_dashboard": False}
