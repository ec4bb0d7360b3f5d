"""The agent of this process, while it is in a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trainer_client.rpc.agent import Agent

_agent: Agent | None = None

offers: Final[list[Callable[..., Any]]] = []
"""Functions of this project that every member offers to others, if it has imported their modules."""


def agent() -> Agent:
    """The agent of this process; `RuntimeError` if it has not joined a group, or has left it."""
    if _agent is None:
        raise RuntimeError(
            "RPC has not been initialized: this process is in no group; call rpc.init_rpc() first, also again after "
            "rpc.shutdown(). Hosted code of tc.local() calls no other owners: start these as "
            "processes. (Current RPC agent is not set! Did you initialize the RPC framework?)"
        )
    return _agent


def has_agent() -> bool:
    """Whether this process is in a group."""
    return _agent is not None


def offer(function: Callable[..., Any]) -> None:
    """Offers a function that is marked `@remote` to the other members of this and of later groups."""
    offers.append(function)
    if _agent is not None:
        _agent.engine.allowlist.allow(function)


def set_agent(agent: Agent | None) -> None:
    """Sets the agent when this process joins a group, and None when it leaves."""
    global _agent
    _agent = agent
