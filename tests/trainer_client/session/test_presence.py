"""Tests that a program is told when an owner cannot be reached, and when it is there again."""

from __future__ import annotations

import asyncio
import logging

import pytest

import trainer_client as tc
from tests.integration.support import Cuttable, in_memory, serving
from trainer_client.session import presence
from trainer_client.session.presence import ConnectionState, Presence


@pytest.fixture
def states() -> list[ConnectionState]:
    return []


def kinds(states: list[ConnectionState]) -> list[str]:
    return [each.state for each in states]


async def test_a_short_interruption_is_told_to_the_callback_only(
    states: list[ConnectionState], caplog: pytest.LogCaptureFixture
) -> None:
    told = Presence("ps0:1", states.append)
    told.away(30.0)
    told.connected()
    told.away(60.0, "cut")
    told.connected()
    assert kinds(states) == ["connecting", "connected", "disconnected", "connected"]
    assert [(each.reason, each.patience) for each in states] == [("", 30.0), ("", 0.0), ("cut", 60.0), ("", 0.0)]
    assert {each.address for each in states} == {"ps0:1"}
    assert not caplog.records


async def test_a_long_one_is_logged_once_with_its_latest_reason_and_its_end(
    states: list[ConnectionState], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_QUIET_SECONDS", 0.0)
    told = Presence("ps0:1", states.append)
    told.away(30.0)
    told.away(30.0, "connection refused")
    await asyncio.sleep(0.0)
    await asyncio.sleep(0.0)
    assert len(caplog.records) == 1
    told.away(30.0, "another reason")
    told.connected()
    told.away(60.0, "the owner closed the stream")
    await asyncio.sleep(0.0)
    await asyncio.sleep(0.0)
    told.lost("it did not come back")
    told.stop()
    assert kinds(states) == ["connecting", "connected", "disconnected", "lost"]
    first, second, third = caplog.messages
    assert first.startswith("the owner at ps0:1 has not been reached since ")
    assert first.endswith(" (connection refused); trying for up to 30 s")
    assert second.startswith("the owner at ps0:1 is there after ")
    assert third.endswith(" (the owner closed the stream); trying for up to 60 s")
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


async def test_a_callback_that_fails_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    def fails(state: ConnectionState) -> None:
        raise ValueError(state.state)

    async with serving() as owner, tc.connect(owner.address, on_state=fails) as ps:
        assert (await ps.status()).owner == "ps0"
    assert caplog.messages == ["on_state has failed"] * 2


async def test_a_client_that_is_closed_tells_nothing_more(states: list[ConnectionState]) -> None:
    async with serving() as owner, tc.connect(owner.address, on_state=states.append):
        pass
    assert kinds(states) == ["connecting", "connected"]


async def test_an_owner_that_is_down_is_lost_with_the_reason(states: list[ConnectionState]) -> None:
    with pytest.raises(tc.errors.UnavailableError, match="refused"):
        async with asyncio.timeout(50), tc.connect("127.0.0.1:1", connect_timeout=0.2, on_state=states.append):
            pytest.fail("nothing is there")
    assert kinds(states) == ["connecting", "lost"]
    assert "refused" in states[-1].reason


async def test_a_connection_that_is_cut_is_told_with_its_reason_and_its_return(states: list[ConnectionState]) -> None:
    async with in_memory() as owner:
        line = Cuttable(owner.connector())
        async with tc.connect(line, on_state=states.append) as ps:
            counter = await ps.create("tests.hosted_models.Counter")
            await line.unplug()
            waiting = counter.add(1)
            await line.refused.wait()
            line.plug_in()
            assert await waiting == 1
    assert kinds(states) == ["connecting", "connected", "disconnected", "connected"]
    assert states[2].reason and states[2].patience == 60.0
