"""The actor that supervises an owner, and what it knows of its node from Ray."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import ray

from ps_service.ray import ray_state
from ps_service.ray.address_exchange import AddressExchange
from ps_service.ray.supervision import Supervision

if TYPE_CHECKING:
    from ps_service.ray.owner_spec import OwnerSpec
    from ps_service.ray.owner_state import OwnerState

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
"""Seconds between questions of whether the node is drained."""


class Supervisor:
    """Starts an owner on the node that Ray has chosen, and restarts it. Its methods are for calls of its actor."""

    def __init__(self, spec: OwnerSpec) -> None:
        # Nothing here may fail: an actor that raises here is not started again.
        logging.basicConfig(stream=sys.stderr, level=logging.INFO)
        self._supervision = Supervision(spec, RayNode())
        threading.Thread(target=self._supervision.run, name="ps-supervision", daemon=True).start()
        threading.Thread(target=AddressExchange(self._supervision).run, name="ps-addresses", daemon=True).start()

    def address(self) -> str:
        """Where the owner serves; empty if it does not."""
        return self._supervision.address

    def exchange(self, name: str, address: str) -> str:
        """Takes the address of another owner of the cluster, and tells that of this one; empty for one that does not
        serve."""
        self._supervision.hear(name, address)
        return self._supervision.address

    def names(self) -> list[str]:
        """All owners of the cluster."""
        return list(self._supervision.spec.names)

    def describe(self) -> OwnerState:
        """Where the owner is, and how often it was started."""
        return self._supervision.describe()

    def stop(self, seconds: float | None = None) -> bool:
        """Drains the owner for good, and waits until it has ended. Returns false if it has not in time."""
        return self._supervision.stop(seconds)


class RayNode:
    """The node of this actor. A thread of its own looks at whether it is drained: while Ray's head is away, the answer
    takes up to a minute."""

    def __init__(self) -> None:
        self.host: str = ray.util.get_node_ip_address()
        self.node: str = ray.get_runtime_context().get_node_id()
        self._draining = False
        threading.Thread(target=self._look, name="ps-draining", daemon=True).start()

    def is_draining(self) -> bool:
        """Whether Ray drains the node, by the latest answer."""
        return self._draining

    def _look(self) -> None:
        while not self._draining:
            time.sleep(_LOOK_SECONDS)
            try:
                self._draining = ray_state.is_draining(self.node)
            except Exception as error:  # whatever another package raises
                _log.info("Ray cannot be asked whether this node is drained: %s", error)

    def leave(self) -> None:
        """Ends the process of the actor. Ray takes that for a crash, and starts it again, on a node that stays."""
        logging.shutdown()
        os._exit(1)
