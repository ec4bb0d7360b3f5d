"""What the supervisor of an owner tells of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OwnerState:
    """Where an owner is, and how often it was started.

    Attributes:
        name: Its name.
        state: `serving`, `starting`, `draining`, `stopped`; `placing` while Ray has no node for it, or `unknown` if its
            supervisor does not answer.
        address: Host and port, if it serves.
        node: The id of its node in Ray.
        host: The address of that node.
        pid: The process of the owner; 0 if there is none.
        restarts: How often it was started again on this node.
        moves: How often Ray has started its supervisor again, there or on another node.
        niceness: The priority that the owner runs with; 0 is that of an ordinary program.
        error: Why it was started again last, or does not serve.
    """

    name: str
    state: str
    address: str = ""
    node: str = ""
    host: str = ""
    pid: int = 0
    restarts: int = 0
    moves: int = 0
    niceness: int = 0
    error: str = ""
