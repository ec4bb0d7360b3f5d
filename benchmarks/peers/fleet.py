"""The processes of a peer, which run in an environment of their own."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from benchmarks.fleet import Fleet
from benchmarks.peers.environments import Environment
from benchmarks.process import Child, Children
from benchmarks.rows import Row, Shape
from benchmarks.sizes import Sizes

GRPC: Final = "grpc_pickle"
RAY: Final = "ray"
RAY_NODE: Final = "ray_node"
TENSORFLOW: Final = "tensorflow"
HIVEMIND: Final = "hivemind"


@dataclass(frozen=True, slots=True)
class Peer:
    """What a peer is called in tables, its program, and whose environment that has, if not its own."""

    title: str
    module: str
    environment: str = ""


PEERS: Final = {
    GRPC: Peer("gRPC with pickle", "benchmarks.peers.grpc_pickle"),
    RAY: Peer("Ray actors", "benchmarks.peers.ray_actors"),
    RAY_NODE: Peer("Ray, another node", "benchmarks.peers.ray_nodes", RAY),
    TENSORFLOW: Peer("TensorFlow", "benchmarks.peers.tensorflow_ps"),
    HIVEMIND: Peer("hivemind", "benchmarks.peers.hivemind_experts"),
}
"""All peers, in the order of their turns."""


HOSTED: Final = ("linears", "linears_whole", "recommender_whole")
"""Kinds of work that only a `hosted.Owner` has."""


def takes_part(side: str, row: Row) -> bool:
    """Whether a side has a turn in the rounds of a row."""
    return row.kind not in HOSTED or side not in (TENSORFLOW, HIVEMIND)


class PeerFleet(Fleet):
    """One peer's owners and trainers.

    Args:
        environment: Where its library is installed.
        shape: The number of processes of each kind.
        sizes: The dimensions of the work.
        children: Starts the processes.
        scratch: A folder for files that they share.
    """

    def __init__(self, environment: Environment, shape: Shape, sizes: Sizes, children: Children, scratch: Path) -> None:
        super().__init__(environment.peer, shape, sizes, children, scratch)
        self._python = environment.python

    def start(self) -> None:
        """Starts every process without waiting, so that all fleets can start at once."""
        self.broken = False
        trainers = self.shape.trainers
        if self.side == TENSORFLOW:
            # Its coordinator gives steps to workers: these are its trainers.
            jobs = ["ps"] + ["worker"] * trainers
            self._owners = [self._run(f"{job}{number}", "owner", job) for number, job in enumerate(jobs)]
            trainers = 1
        elif self.side == HIVEMIND:
            self._owners = [self._run("owner0", "owner", *map(str, astuple(self._sizes)))]
        else:
            self._owners = [self._run("owner0", "owner")]
        self._trainers = [self._run(f"trainer{rank}", "trainer") for rank in range(trainers)]

    def _run(self, name: str, *arguments: str) -> Child:
        return self._children.start(f"{self.side}-{name}", PEERS[self.side].module, *arguments, python=self._python)
