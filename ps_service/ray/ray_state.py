"""What Ray knows of nodes and actors, and tells to its own libraries only: all that is not public is used here."""

from __future__ import annotations

from typing import Any

from ray._private.state import state


def is_draining(node: str) -> bool:
    """Whether a node is being drained. Raises whatever Ray does if its head cannot be asked."""
    return node in state.get_draining_nodes()


def times_restarted(actor: Any) -> int:
    """How often Ray has started an actor again; 0 if that is not known."""
    return int(state.actor_table(actor._actor_id.hex()).get("NumRestarts", 0))
