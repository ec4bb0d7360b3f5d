"""Owners that are told the members of their group by whoever starts them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.group.static_members import StaticMembers
from ps_service.server import Server
from ps_wire.errors import UnavailableError, UnknownNameError
from tests import hosted_models
from tests.allowed import allowed
from tests.waiting import until
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.current import set_agent
from trainer_client.rpc.peers import GroupPeers
from trainer_client.rpc.planning import Plan
from trainer_client.session.settings import Settings


class Group(AsyncExitStack):
    """Two owners in this process; what starts them tells each where the other is."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.told: dict[str, StaticMembers] = {}
        self.agents: dict[str, Agent] = {}

    async def start(self, name: str) -> Agent:
        server = Server(Engine(name, allowed(hosted_models), data_dir=self._folder / name), "127.0.0.1:0")
        await server.start()
        agent = self.agents[name] = Agent(server, Settings(reconnect_timeout=20.0))
        self.push_async_callback(agent.stop)
        told = self.told[name] = StaticMembers(name)
        for each in ("ps0", "ps1", ""):
            told.hear(each)
        await agent.join(Plan(is_owner=True, told=told), GroupPeers(agent))
        return agent

    def tell(self, name: str, about: str) -> None:
        self.told[name].hear(f"{about}={self.agents[about].server.address}")


async def test_hosted_code_calls_an_owner_that_comes_later_and_moves(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        ps0, ps1 = await group.start("ps0"), await group.start("ps1")
        set_agent(ps0)
        group.callback(set_agent, None)
        group.tell("ps1", "ps0")
        async with tc.connect(ps0.server.address, ps1.server.address) as there:
            net = await there.module("tests.hosted_models.Delegating", name="net", owner="ps0")
            layer = await there.module("torch.nn.Linear", 3, 3, name="layer", owner="ps1", seed=1)
            calling = asyncio.ensure_future(net(torch.ones(1, 3), layer))
            await until(lambda: bool(ps0.client.others._opening), 0.001)
            group.tell("ps0", "ps1")  # the call waits for it
            before = await calling
            assert [each.id for each in (ps0.member, ps1.member)] == [0, 1]
        await ps1.leave(0.0)
        moved = await group.start("ps1")
        assert moved.server.address != ps1.server.address
        group.tell("ps0", "ps1")
        group.tell("ps1", "ps0")
        async with tc.connect(directory=[moved.server.address]) as ps:
            assert ps.owners == ["ps0", "ps1"]
            net, layer = await ps.attach("net", owner="ps0"), await ps.attach("layer", owner="ps1")
            assert torch.equal(await net(torch.ones(1, 3), layer), before)
        assert ps0.client.sessions["ps1"].address == moved.server.address


async def test_a_member_that_is_not_there_is_told_apart_from_one_that_is_not_known() -> None:
    told = StaticMembers("ps0")
    for line in ("ps0", "ps1", "ps2=127.0.0.1:77", "ps2=nowhere", "p/s=127.0.0.1:1", "ps2"):
        told.hear(line)
    assert await told.find("ps2") == "127.0.0.1:77"
    with pytest.raises(UnavailableError, match="'ps1' is being started, or moves"):
        await told.find("ps1")
    with pytest.raises(UnknownNameError, match="no member 'ps3'; its members are: ps0, ps1, ps2"):
        await told.find("ps3")
    assert [(each.name, each.address, each.id) for each in told.members("127.0.0.1:5")] == [
        ("ps0", "127.0.0.1:5", 0),
        ("ps2", "127.0.0.1:77", 2),
    ]


async def test_an_owner_that_is_told_nobody_does_not_join(tmp_path: Path) -> None:
    async with Server(Engine("ps0")) as server:
        agent = Agent(server, Settings())
        with pytest.raises(UnavailableError, match="'ps0' was not told the members of its group within 0 s"):
            await agent.join(Plan(is_owner=True, seconds=0.0, told=StaticMembers("ps0")), GroupPeers(agent))
        await agent.withdraw(RuntimeError())
