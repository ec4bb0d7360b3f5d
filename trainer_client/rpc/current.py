"""Current: the agent of this process, once it has joined a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer_client.rpc.agent import Agent

_agent: Agent | None = None


def agent() -> Agent:
    """This process as a member of its group.

    Raises:
        RuntimeError: It has not joined one, or has left it.
    """
    if _agent is None:
        raise RuntimeError("this process is in no group: call rpc.init_rpc() first; after rpc.shutdown() it is over")
    return _agent


def has_agent() -> bool:
    """Whether this process is in a group."""
    return _agent is not None


def set_agent(agent: Agent | None) -> None:
    """This process has joined a group, or left it."""
    global _agent
    _agent = agent
