"""Hosted modules that get a table whose rows have moved, of which not all of its owners know."""

from __future__ import annotations

import pytest
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.server import Server
from tests import table_models
from tests.allowed import allowed
from tests.integration.tables.conftest import Group
from tests.integration.tables.moving import NAMES
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.peers import GroupPeers
from trainer_client.rpc.planning import Plan
from trainer_client.session.settings import Settings
from trainer_client.tables.moves import Move

IDS = torch.arange(40)


@pytest.mark.parametrize("source", ["ps0", "ps1"])
async def test_a_look_up_reaches_an_owner_that_has_just_got_rows(
    group: Group, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """The owner that keeps its rows has not heard of the new one yet."""
    server = Server(Engine("ps2", allowed(table_models)), direct_port=0)
    await server.start()
    agent = Agent(server, Settings())
    await agent.join(Plan(group.agents["ps0"].server.address), GroupPeers(agent))
    original, found = Move._attempt, list[torch.Tensor]()
    try:
        addresses = [each.server.address for each in (*group.agents.values(), agent)]
        async with tc.connect(*addresses) as ps:
            items = await ps.table("items", 4, tc.tables.SGD(1.0), owners=["ps0", "ps1"], init=tc.tables.Normal(1.0))
            nets = [await ps.module(table_models.Scored, None, 4, owner=each, seed=0) for each in NAMES]
            expected = [await each.of_rows(await items(IDS)) for each in nets]

            async def attempt(move: Move, ends: float) -> None:
                await original(move, ends)
                found.extend([await each.given(items, IDS) for each in nets])

            monkeypatch.setattr(Move, "_attempt", attempt)
            await ps.rebalance([items.name], ["ps2", "ps1" if source == "ps0" else "ps0"])
    finally:
        await agent.leave(0.0)
    assert all(map(torch.equal, found, expected)) and len(found) == len(expected)
