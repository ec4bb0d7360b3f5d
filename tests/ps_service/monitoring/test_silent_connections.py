"""HTTP connections on which no whole request arrives do not stay."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from ps_service.engine import Engine
from ps_service.monitoring import silent_connections
from ps_service.server import Server

HERE = "127.0.0.1:0"


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
async def test_one_without_a_whole_request_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silent_connections, "SECONDS", 0.02)
    async with Server(Engine("ps0"), http=HERE) as server, aiohttp.ClientSession() as http:
        async with http.get(f"{server.http_url}/healthz") as answer:
            assert answer.status == 200
        kept = await opened(server.http_address, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await kept[0].readline()).startswith(b"HTTP/1.1 200")
        reader, writer = await opened(server.http_address, sent)
        async with asyncio.timeout(50):
            assert await reader.read() == b""
        # One that has asked may ask again, for as long as aiohttp keeps it.
        kept[1].write(b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"404" in await kept[0].readuntil(b"404")
        for each in (writer, kept[1]):
            each.close()
            await each.wait_closed()


async def opened(address: str, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    return reader, writer
