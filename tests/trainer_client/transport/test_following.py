"""Tests when a connector asks where its owner is, and what it does with the answer."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ps_wire.connections.connection import ConnectionBroken, Connector
from trainer_client.transport.following import FollowingConnector


class Place:
    """A connector that writes down what is asked of it."""

    def __init__(self, address: str, log: list[str]) -> None:
        self.address = address
        self._log = log

    async def connect(self) -> Any:
        self._log.append(f"dial {self.address}")

    async def close(self) -> None:
        self._log.append(f"close {self.address}")


class Places:
    """Says where the owner is, one answer after the other."""

    def __init__(self, *answers: str | Exception) -> None:
        self.log: list[str] = []
        self._answers = list(answers)

    async def find(self) -> str:
        self.log.append("ask")
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def dial(self, address: str) -> Connector:
        return cast("Connector", Place(address, self.log))

    def connector(self, address: str = "") -> FollowingConnector:
        return FollowingConnector(self.find, self.dial, "ps1", address)


async def test_the_first_dial_to_a_known_address_asks_nobody() -> None:
    places = Places("here:1", "there:1")
    connector = places.connector("here:1")
    for address in ("here:1", "here:1", "there:1"):
        await connector.connect()
        assert connector.address == address
    assert places.log == ["dial here:1", "ask", "dial here:1", "ask", "close here:1", "dial there:1"]
    await connector.close()
    assert places.log[-1] == "close there:1"


async def test_without_an_address_the_first_dial_asks() -> None:
    places = Places(LookupError("not yet"), TimeoutError(), "here:1", ZeroDivisionError(), "there:1")
    connector = places.connector()
    for why in ("not yet", "TimeoutError"):
        with pytest.raises(ConnectionBroken, match=f"its address is not known: {why}"):
            await connector.connect()
    assert connector.address == "ps1"
    await connector.close()
    for address in ("here:1", "here:1", "there:1"):
        await connector.connect()
        assert connector.address == address
