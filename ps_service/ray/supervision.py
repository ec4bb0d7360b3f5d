"""Keeps an owner running on a node: starts it again when it has ended, and gives it up when it has to go elsewhere."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from ps_service.ray.owner_process import OwnerProcess
from ps_service.ray.owner_state import OwnerState

if TYPE_CHECKING:
    from ps_service.ray.owner_spec import OwnerSpec

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
"""Seconds between looks at what is known of the node; the end of the owner is noticed at once."""

_MOST_FAILURES: Final = 3
"""Starts on this node that may fail one after the other before another node is tried."""

_FIRST_PAUSE: Final = 0.5
"""Seconds before the start after the first that has failed; twice as many before each further one."""

_REPLACED: Final = 2
"""The exit code of an owner that has served and whose data directory another one has taken."""


class Place(Protocol):
    """The node that an owner runs on."""

    node: str
    host: str

    def is_draining(self) -> bool:
        """Whether the node is being drained: it is about to go."""

    def leave(self) -> None:
        """Has the owner started on another node, or here again if there is no other. Ends this process."""


class Supervision:
    """Runs an owner until it is stopped or leaves this node. `run` is for a thread of its own."""

    def __init__(
        self, spec: OwnerSpec, place: Place, begin: Callable[[list[str]], OwnerProcess] = OwnerProcess
    ) -> None:
        self.spec = spec
        self._place = place
        self._begin_process = begin
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._owner: OwnerProcess | None = None
        self._addresses = dict.fromkeys(spec.names, "")
        self._state = "starting"
        self._restarts = 0
        self._error = ""
        self._port = "0"
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        if niceness > 0:
            _log.warning(
                "%s runs at nice %d, behind all ordinary programs of this machine: start Ray's nodes with "
                "RAY_worker_niceness=0 in their environment",
                *(spec.name, niceness),
            )

    def run(self) -> None:
        """Starts the owner, again and again, until it is stopped or this node is left."""
        try:
            self._run()
        except Exception:
            _log.exception("%s cannot be supervised here", self.spec.name)
            self._leave("no process can be started")

    def _run(self) -> None:
        failures = 0
        while (owner := self._begin()) is not None:
            drained = self._watch(owner)
            if self._stopping.is_set():
                break
            if drained or (owner.served and owner.code == _REPLACED):
                self._leave("its node is drained" if drained else "another owner has taken its data directory")
                return
            failures = 0 if owner.served else failures + 1
            self._error = (
                f"it has ended with exit code {owner.code} {'' if owner.served else 'before it served'}".strip()
            )
            _log.warning("%s: %s", self.spec.name, self._error)
            if failures == _MOST_FAILURES:
                self._leave(self._error)
                return
            self._restarts += 1
            if failures:
                self._stopping.wait(_FIRST_PAUSE * 2 ** (failures - 1))
        self._state = "stopped"
        self._over.set()

    def stop(self, seconds: float | None = None) -> bool:
        """Drains the owner, and waits until it has ended. Returns false if that has not happened in time."""
        with self._lock:
            self._stopping.set()
            self._state = "draining"
            if self._owner is not None:
                self._owner.drain()
        return self._over.wait(seconds)

    def hear(self, name: str, address: str) -> None:
        """Tells the owner where another owner of the cluster serves; one that has none is left where it was."""
        with self._lock:
            if address and address != self._addresses[name]:
                self._addresses[name] = address
                if self._owner is not None:
                    self._owner.tell(f"{name}={address}")

    @property
    def address(self) -> str:
        """Where the owner serves; empty if it does not."""
        owner = self._owner
        return "" if owner is None else owner.address

    def describe(self) -> OwnerState:
        """Where the owner is, and how often it was started."""
        owner, address = self._owner, self.address
        return OwnerState(
            name=self.spec.name,
            state="serving" if address and self._state == "starting" else self._state,
            address=address,
            node=self._place.node,
            host=self._place.host,
            pid=0 if owner is None else owner.pid,
            restarts=self._restarts,
            niceness=os.getpriority(os.PRIO_PROCESS, 0),
            error=self._error,
        )

    def _begin(self) -> OwnerProcess | None:
        """Starts the owner; None if it is to stop."""
        listen = f"{_bracketed(self._place.host)}:{self._port}"
        with self._lock:
            if self._stopping.is_set():
                return None
            self._owner = self._begin_process(self.spec.command(listen))
            for name, address in self._addresses.items():
                self._owner.tell(f"{name}={address}" if address else name)
            self._owner.tell("")
            return self._owner

    def _watch(self, owner: OwnerProcess) -> bool:
        """Waits until it has ended. Returns whether it was drained because its node is."""
        drained = False
        while not owner.ended.wait(None if drained else _LOOK_SECONDS):
            if self._place.is_draining():
                _log.warning("the node of %s is drained: it ends here, and goes on elsewhere", self.spec.name)
                drained, self._state = True, "draining"
                owner.drain()
        # The port of one that has served may be had again, so trainers find it where it was.
        self._port = listened.rpartition(":")[2] if (listened := owner.listened) else "0"
        return drained

    def _leave(self, why: str) -> None:
        _log.warning("%s leaves the node at %s: %s", self.spec.name, self._place.host, why)
        self._over.set()
        self._place.leave()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
