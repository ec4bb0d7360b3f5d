"""A Ray cluster on this machine, whose nodes have addresses of their own, and stand for machines."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import psutil
import ray
from ray.cluster_utils import Cluster as Raylets

MIB: Final = 1 << 20
OWNER: Final = {"role": "owner"}
"""The label of nodes, unless others are given."""


class Machines:
    """A head that runs nothing, and no nodes at first. `close`, or the end of a `with` block, ends all of it.

    With `takes_jobs` the head has a dashboard, at `url`, which takes jobs; that needs what `ray[default]` installs.
    """

    def __init__(self, takes_jobs: bool = False) -> None:
        self._nodes: dict[str, Any] = {}
        self._made = 1
        head = _arguments(num_cpus=0) | ({"include_dashboard": True, "dashboard_port": 0} if takes_jobs else {})
        self.raylets = Raylets(initialize_head=True, head_node_args=head)
        context = ray.init(address=self.raylets.address, log_to_driver=False, logging_level="ERROR")
        self.url: Final = f"http://{context.dashboard_url}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, num_cpus: int = 3, labels: Mapping[str, str] = OWNER) -> str:
        """One more node, at 127.0.0.2 and so on. Returns its id."""
        self._made += 1
        address = f"127.0.0.{self._made}"
        node = self.raylets.add_node(**_arguments(num_cpus), node_ip_address=address, labels=dict(labels))
        self._nodes[node.node_id] = node
        return str(node.node_id)

    def cut_power(self, node: str, owners: Iterable[int]) -> None:
        """Ends all processes of a node at once, with the owners on it, which are given by their process ids."""
        raylet = self._raylet(node)
        for pid in [*(each.pid for each in psutil.Process(raylet.pid).children(recursive=True)), raylet.pid, *owners]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raylet.wait()

    def is_known_dead(self, node: str) -> bool:
        """Whether Ray knows that a node is gone."""
        return any(each["NodeID"] == node and not each["Alive"] for each in ray.nodes())

    def close(self) -> None:
        """Ends all nodes and the head."""
        ray.shutdown()
        self.raylets.shutdown()

    def _raylet(self, node: str) -> Any:
        return self._nodes[node].all_processes["raylet"][0].process


def _arguments(num_cpus: int) -> dict[str, Any]:
    return {"num_cpus": num_cpus, "object_store_memory": 80 * MIB, "include_dashboard": False}
