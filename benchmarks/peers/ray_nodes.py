"""Actors of Ray on another node than the trainer: two nodes of this machine, between which arrays travel over TCP."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.peers.hosted import Owner
from benchmarks.peers.ray_actors import NAMESPACE, library, trainer
from benchmarks.peers.serving import run

_STORE: Final = {"object_store_memory": 1 << 29, "num_cpus": 4}


@contextmanager
def owner(_: list[str]) -> Iterator[str]:
    """Starts two nodes, and an actor on the one that trainers do not connect to."""
    token = secrets.token_hex(32)
    ray = library(token)
    from ray.cluster_utils import Cluster  # after the settings of Ray were made

    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        head = {**_STORE, "include_dashboard": False, "temp_dir": folder}
        nodes = Cluster(initialize_head=True, head_node_args=head)
        nodes.add_node(**_STORE, node_ip_address="127.0.0.2", resources={"owner": 1})
        ray.init(address=nodes.address, namespace=NAMESPACE, log_to_driver=False)
        actor = ray.remote(Owner).options(name="owner", resources={"owner": 1}).remote()
        ray.get(actor.echo.remote(None))
        yield f"{nodes.address}/{token}"
        ray.shutdown()
        nodes.shutdown()


if __name__ == "__main__":
    run(owner, trainer)
