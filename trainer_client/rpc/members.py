"""How the members of a group are named and numbered in profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer_client.rpc.agent import Agent


class GroupMembers:
    """The members of a group, as `trainer_client.profiling.members.Members`.

    Args:
        agent: The agent of this process.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    @property
    def name(self) -> str:
        """Name of this process."""
        return self._agent.name

    @property
    def number(self) -> int:
        """Number of this process."""
        return self._agent.member.id

    def number_of(self, owner: str) -> int:
        """Number of another member."""
        return self._agent.number_of(owner)
