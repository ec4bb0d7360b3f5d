"""Actors of Ray: the owner is one actor, and its node is on this machine."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.caller import Caller
from benchmarks.peers.hosted import Owner
from benchmarks.peers.serving import run
from benchmarks.trainer import Config

NAMESPACE = "benchmarks"


def library(token: str) -> Any:
    """Ray, imported after its settings were made, because it reads them then."""
    os.environ |= {
        # Its own default for a cluster on one machine is a token that no other process gets.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        # It keeps to loopback then, and does not take the machine's address on its network instead.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Its workers would run behind all other programs.
        "RAY_worker_niceness": "0",
    }
    import ray

    return ray


@contextmanager
def owner(_: list[str]) -> Iterator[str]:
    """Starts Ray with one actor."""
    token = secrets.token_hex(32)
    ray = library(token)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=8,
            namespace=NAMESPACE,
            include_dashboard=False,
            _temp_dir=folder,
            object_store_memory=1 << 30,
        )
        actor = ray.remote(Owner).options(name="owner").remote()
        ray.get(actor.echo.remote(None))
        yield f"{ray.get_runtime_context().gcs_address}/{token}"
        ray.shutdown()


def trainer(config: Config) -> Caller:
    """Calls methods of the actor, and waits for each."""
    address, _, token = config.owners[0].partition("/")
    ray = library(token)
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False)
    actor = ray.get_actor("owner")
    return Caller(config, lambda method, *args: ray.get(getattr(actor, method).remote(*args)))


if __name__ == "__main__":
    run(owner, trainer)
