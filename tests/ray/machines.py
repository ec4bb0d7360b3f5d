"""A Ray cluster on this machine, whose nodes the tests kill and drain."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ray._raylet import GcsClient

from examples import raylets
from examples.raylets import OWNER as LABELS

__all__ = ["LABELS", "SECONDS", "Machines", "waited"]

DRAINED_BY_PREEMPTION: Final = 2
"""The reason for which a cloud takes a node away."""

SECONDS: Final = 120.0
"""How long anything may take at most, on a busy machine."""


class Machines(raylets.Machines):
    """A head that runs nothing, and nodes with room for two owners and the tests' own workers. A head can come back
    only where RAY_REDIS_ADDRESS names a store for what it knows."""

    def __init__(self, nodes: int = 2) -> None:
        super().__init__()
        for _ in range(nodes):
            self.add()

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

    def kill_head(self) -> None:
        """Ends the server of Ray's head."""
        self.raylets.head_node.kill_gcs_server()

    def start_head(self) -> None:
        """Starts it again, at its address."""
        self.raylets.head_node.start_gcs_server()

    def forget(self, node: str) -> None:
        """Ends what is left of a node that is gone."""
        self.raylets.remove_node(self._nodes.pop(node), allow_graceful=False)


def waited(so: Callable[[], Any], pause: float = 0.02) -> float:
    """Waits until something is so, and returns when it was. Raises `TimeoutError`."""
    ends = time.monotonic() + SECONDS
    while not so():
        if time.monotonic() > ends:
            raise TimeoutError("it has not come to be in time")
        time.sleep(pause)
    return time.monotonic()
