"""Keeps forked children away from the connections of their parent.

A forked child has copies of its parent's sockets and event loops, and none of its threads. Using them would disturb the
parent's connections, or wait for ever for a thread that does not exist. So in a child, all event loops of connections
are foreign: nothing is sent through them, and calls raise a `ClosedError`.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Hashable
from typing import Any, Final, Protocol
from weakref import WeakSet

from ps_wire.errors import ClosedError, UnavailableError

_log = logging.getLogger(__name__)

_OFF: Final = frozenset({"0", "false", "no"})


class Inherited(Protocol):
    """An object of the parent that its child has to close or keep unused."""

    def forked(self) -> None:
        """Called in a forked child. The parent still uses its copy."""


class _State:
    def __init__(self) -> None:
        self.loops: WeakSet[Any] = WeakSet()
        self.things: WeakSet[Any] = WeakSet()
        self.foreign: set[Hashable] = set()
        self.opened_by = 0
        self.uses_grpc = False
        self.inherits_grpc = False
        self.has_warned = False


_state: Final = _State()


def belongs_here(loop: Hashable) -> None:
    """Registers an event loop of connections of this process."""
    _state.loops.add(loop)


def put_away_in_children(thing: Inherited) -> None:
    """Calls `thing.forked()` in every child that is forked while `thing` lives."""
    _state.things.add(thing)


def is_foreign(loop: Hashable) -> bool:
    """Whether an event loop belongs to the parent of this forked process."""
    return bool(_state.foreign) and loop in _state.foreign


def refusal() -> ClosedError:
    """The error for the use of a connection of the parent."""
    return ClosedError(
        f"this client was opened by process {_state.opened_by}, of which this one ({os.getpid()}) is a fork; "
        "connections are not shared with forked processes"
    )


def use_grpc() -> None:
    """Notes that this process uses gRPC from now on. Raises `UnavailableError` in a fork of a process that has used
    gRPC: gRPC would never answer there."""
    if _state.inherits_grpc:
        raise UnavailableError(
            f"this process is a fork of process {_state.opened_by}, which had used gRPC before, and gRPC does not work "
            "in forks of such processes. Start it with the method 'spawn' or 'forkserver', or fork before connecting"
        )
    _state.uses_grpc = True


def keep_for_ever(thing: object) -> None:
    """Never frees an object of the parent, because its finalizer would affect what the parent still uses."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _before() -> None:
    if not _state.uses_grpc or os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "1") in _OFF or _state.has_warned:
        return
    _state.has_warned = True
    _log.warning(
        "gRPC's own support for forks is on, because grpc was imported before this library or it was asked for: forked "
        "children may crash. Import trainer_client or ps_service first, or set GRPC_ENABLE_FORK_SUPPORT=0"
    )


def _after_in_child() -> None:
    if not _state.foreign or _state.loops:
        _state.opened_by = os.getppid()
    for loop in list(_state.loops):
        keep_for_ever(loop)
        _state.foreign.add(loop)
    _state.loops.clear()
    for thing in list(_state.things):
        keep_for_ever(thing)
        thing.forked()
    _state.things.clear()
    _state.inherits_grpc = _state.inherits_grpc or _state.uses_grpc


os.register_at_fork(before=_before, after_in_child=_after_in_child)
