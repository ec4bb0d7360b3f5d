"""Tells the program whether an owner can be reached: in the log, and by a callback."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

_log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 1.0
"""Interruptions that are shorter are not logged."""


State = Literal["connecting", "connected", "disconnected", "lost"]


class ConnectionState(NamedTuple):
    """Whether a client can reach one of its owners.

    Attributes:
        address: The owner's address.
        state: "connecting" until the owner has been reached for the first time; "connected"; "disconnected" while the
            client tries to reach it again; "lost" when it has given up.
        since: When this state began, in seconds since the epoch.
        reason: Why the owner is not connected; empty if it is, or if it is not known yet.
        patience: For how many seconds in all the client tries to reach it; 0 if it does not try.
    """

    address: str
    state: State
    since: float
    reason: str = ""
    patience: float = 0.0


OnState = Callable[[ConnectionState], object]


class Presence:
    """Whether one owner can be reached, which may move to another `address`. Interruptions of more than a second are
    logged once, and their ends."""

    def __init__(self, address: str, on_state: OnState | None) -> None:
        self.address = address
        self._on_state = on_state
        self._state: ConnectionState | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._told = False

    def away(self, patience: float, reason: str = "") -> None:
        """The owner is not connected, and is tried for so many seconds in all. The latest reason counts."""
        if self._state is not None and self._state.state != "connected":
            self._state = self._state._replace(reason=reason)
            return
        self._enter("connecting" if self._state is None else "disconnected", reason, patience)
        self._timer = asyncio.get_running_loop().call_later(_QUIET_SECONDS, self._tell)

    def connected(self) -> None:
        """The owner is connected."""
        before = self._state
        self._quiet()
        self._enter("connected")
        if self._told and before is not None:
            self._told = False
            _log.warning("the owner at %s is there after %.1f s", self.address, time.time() - before.since)

    def lost(self, reason: str) -> None:
        """The client has given up."""
        self._quiet()
        self._enter("lost", reason)

    def stop(self) -> None:
        """The client is closed: nothing is told any more."""
        self._quiet()
        self._on_state = None

    def _enter(self, state: State, reason: str = "", patience: float = 0.0) -> None:
        self._state = ConnectionState(self.address, state, time.time(), reason, patience)
        if self._on_state is None:
            return
        try:
            self._on_state(self._state)
        except Exception:
            _log.exception("on_state has failed")

    def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        assert self._state is not None
        self._told = True
        _log.warning(
            "the owner at %s %s since %s%s; trying for up to %g s",
            self.address,
            "has not been reached" if self._state.state == "connecting" else "is not connected",
            time.strftime("%H:%M:%S", time.localtime(self._state.since)),
            f" ({self._state.reason})" if self._state.reason else "",
            self._state.patience,
        )
