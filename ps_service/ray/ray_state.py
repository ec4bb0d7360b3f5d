"""What Ray knows of nodes and actors, and tells to its own libraries only: all that is not public is used here."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ray._private.state import state

_NOT_PLACED: Final = ("PENDING_CREATION", "RESTARTING")


def is_draining(node: str) -> bool:
    """Whether a node is being drained. Raises whatever Ray does if its head cannot be asked."""
    return node in state.get_draining_nodes()


class ActorState(NamedTuple):
    """What Ray does with an actor: how often it has started it again, and whether it looks for a node for it now."""

    restarts: int
    is_placed: bool


def state_of(actor: Any) -> ActorState:
    """What Ray does with an actor. Raises whatever Ray does if its head cannot be asked."""
    found = state.actor_table(actor._actor_id.hex())
    return ActorState(int(found.get("NumRestarts", 0)), found.get("State") not in _NOT_PLACED)
