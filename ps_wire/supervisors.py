"""How the actors on Ray that supervise owners are named, for those that start and for those that ask them."""

from __future__ import annotations

from typing import Final

NAMESPACE: Final = "ps-service"
"""The namespace on Ray of all supervisors, which jobs in other namespaces find, too."""


def supervisor_name(cluster: str, owner: str) -> str:
    """The name of the actor that supervises an owner of a cluster."""
    return f"{cluster}/{owner}"


def is_supervisor_in(cluster: str, actor: str) -> bool:
    """Whether the actor of that name supervises an owner of a cluster."""
    return actor.startswith(f"{cluster}/")
