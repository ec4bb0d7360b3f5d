"""Tests of requests that are sent again because their object moves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ps_wire.errors import ClosedError, ObjectMovedError
from tests.trainer_client.scripted_owner import look_up, opened
from tests.waiting import until


class Unreached:
    """Other owners, none of which is reached until the client `ends`."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.ends = asyncio.get_running_loop().create_future()

    async def reach(self, owner: str) -> Any:
        self.asked.set()
        await self.ends


@pytest.mark.parametrize("ends", ["close", "close at once", "fail", "others"])
async def test_a_request_that_is_to_be_sent_again_fails_when_the_client_is_closed(ends: str) -> None:
    others = Unreached()
    async with opened(others) as (session, stream, _):
        sent = look_up(session, "net")
        behind = look_up(session, "later")
        number = (await stream.request()).number
        await stream.requests(1)
        await stream.refuse(number, ObjectMovedError("'net' has moved", "ps1", "a move", "an id"))
        if ends == "close at once":
            await until(lambda: session.moves._tasks)
        else:
            await others.asked.wait()
        if ends == "others":
            others.ends.cancel()
        else:
            await session.close(fails=ends == "fail")
        with pytest.raises(ClosedError, match="this client is closed"):
            await sent
        behind.cancel()


async def test_a_request_for_an_object_that_is_about_to_move_fails_when_the_client_is_closed() -> None:
    async with opened() as (session, stream, _):
        sent = look_up(session, "net")
        number = (await stream.request()).number
        await stream.refuse(number, ObjectMovedError("'net' is about to move", "", "", "an id"))
        await until(lambda: session.moves._tasks)
        await session.close()
        with pytest.raises(ClosedError, match="this client is closed"):
            await sent
