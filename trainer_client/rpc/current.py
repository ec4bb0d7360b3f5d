"""The agent of this process, while it is in a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer_client.rpc.agent import Agent

_agent: Agent | None = None


def agent() -> Agent:
    """The agent of this process.

    Raises:
        RuntimeError: The process has not joined a group, or has left it.
    """
    if _agent is None:
        raise RuntimeError(
            "RPC has not been initialized: this process is in no group; call rpc.init_rpc() first, also again after "
            "rpc.shutdown()"
        )
    return _agent


def has_agent() -> bool:
    """Whether this process is in a group."""
    return _agent is not None


def set_agent(agent: Agent | None) -> None:
    """Sets the agent when this process joins a group, and None when it leaves."""
    global _agent
    _agent = agent
