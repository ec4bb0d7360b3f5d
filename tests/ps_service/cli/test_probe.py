"""Tests the requests of the command line to an owner."""

from __future__ import annotations

import asyncio
import re
import socket

import pytest

from ps_service.cli import probe
from ps_service.hosting.objects import HostedObject
from ps_service.server import Server
from ps_wire.errors import InvalidArgumentError, UnavailableError


async def test_an_owner_of_very_many_objects_tells_its_status(owner: Server) -> None:
    registry, parameter_locks = owner.engine.registry, owner.engine.parameter_locks
    for number in range(10_001):
        registry.add(HostedObject("ps0", None, parameter_locks, f"{number:0>500}"))
    status = await asyncio.to_thread(probe.status, owner.address, 60.0)
    assert (len(status.objects), status.objects_hosted) == (1000, 10_001)
    # More than gRPC's usual limit of a message.
    status = await asyncio.to_thread(probe.status, owner.address, 60.0, most=20_000)
    assert (len(status.objects), status.objects_hosted) == (10_000, 10_001)


async def test_the_port_of_another_protocol_is_told() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        text = f"no owner answers at {address}: an HTTP server is there; use the port of --listen, not that of --http"
        with pytest.raises(UnavailableError, match=re.escape(text)):
            await asyncio.to_thread(probe.status, address, 5.0)


async def test_an_owner_that_does_not_answer_in_time_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=r"nothing came within 0\.1 s"):
            await asyncio.to_thread(probe.status, address, 0.1)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("localhost", "'localhost' is not the address of an owner: give host:port, as in 'localhost:50051'"),
        ("127.0.0.1:x", "'127.0.0.1:x' is not the address of an owner: give host:port, as in '127.0.0.1:50051'"),
        (
            "http://10.0.0.1:9464",
            "'http://10.0.0.1:9464' is not the address of an owner: give host:port without http://",
        ),
    ],
)
def test_what_is_no_address_is_named(address: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(message)}"):
        probe.status(address)
