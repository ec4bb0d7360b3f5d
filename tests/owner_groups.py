"""Groups of owners in one process."""

from __future__ import annotations

from contextlib import AsyncExitStack

from ps_service.engine import Engine
from ps_service.server import Server
from tests import hosted_models
from tests.allowed import allowed
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.peers import GroupPeers
from trainer_client.rpc.planning import Plan
from trainer_client.session.settings import Settings


class OwnerGroup(AsyncExitStack):
    """Owners in this process.

    Args:
        directory: Address of the owner that keeps the directory; empty for the first.

    Attributes:
        agents: Those that have entered, by name.
    """

    def __init__(self, directory: str = "") -> None:
        super().__init__()
        self._directory = directory
        self.agents: dict[str, Agent] = {}

    async def enter(self, name: str, *, is_owner: bool = True, listen: str = "127.0.0.1:0") -> Agent:
        """Another owner, which leaves before those that came earlier; or a program that has joined by itself."""
        server = Server(Engine(name, allowed(hosted_models)), listen)
        await server.start()
        agent = Agent(server, Settings(connect_timeout=0.2, reconnect_timeout=0.1))
        self.push_async_callback(agent.leave, 0.0)
        # The first one may come again.
        keeps = not self._directory and next(iter(self.agents), name) == name
        await agent.join(Plan("" if keeps else self.directory, is_owner=is_owner), GroupPeers(agent))
        self.agents[name] = agent
        return agent

    @property
    def keeper(self) -> Agent:
        """The first owner."""
        return next(iter(self.agents.values()))

    @property
    def directory(self) -> str:
        """Address of the owner that keeps the directory."""
        return self._directory or self.keeper.server.address
