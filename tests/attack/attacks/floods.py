"""Attacks with many connections, slow ones, and messages that grow, while an innocent trainer goes on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress

import psutil
import torch

from ps_wire.codec.values import Encoder
from ps_wire.compression.zstd import Zstd
from ps_wire.limits import MIB, SMALL_BYTES
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.frames_pb2 import Frame, Request
from tests.attack.attack import attack
from tests.attack.attacks.lines import HTTP2, ports
from tests.attack.scene import Scene
from tests.integration.support import COUNTER, HandMade
from trainer_client.transport.grpc_stream import GrpcConnector

CONNECTIONS = 200
PASSES = 10


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


@asynccontextmanager
async def _trained_meanwhile(at: Scene) -> AsyncIterator[None]:
    """Has the innocent trainer make passes as long as the block runs, and some more before it ends."""
    over = asyncio.Event()

    async def train() -> None:
        count = 0
        while not over.is_set() or count < PASSES:
            await at.innocent.one_pass()
            count += 1

    training = asyncio.create_task(train())
    try:
        yield
    finally:
        over.set()
        await training


async def _drip(at: Scene, port: int, text: bytes) -> None:
    """Opens many connections to a port, and sends each of them a text by single bytes, and never all of it."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        sockets = []
        for _ in range(CONNECTIONS):
            at.tried += 1
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", port))
            sockets.append(sock)
        for place in range(len(text) - 1):
            for sock in sockets:
                with suppress(OSError):
                    await loop.sock_sendall(sock, text[place : place + 1])
            await at.innocent.one_pass()
        # Whoever comes now is served as before.
        async with at.identities.connect(at.server, "trainer") as ps:
            await ps.status()


@attack(
    "opens 200 connections to each port, and sends each of them bytes one by one: HTTP/2, a direct token, HTTP",
    "an innocent trainer goes on, and a new one is let in",
)
async def send_slowly_to_every_port(at: Scene) -> None:
    texts = {"grpc": HTTP2, "direct": b"ps-wire1" + bytes(32), "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n"}
    for listener, port in ports(at).items():
        await _drip(at, port, texts[listener][:30])


@attack(
    "opens 300 sessions and 300 streams of one session, without a goodbye, and 1,300 messages that never end",
    "an innocent trainer goes on, and memory stays within 200 MB",
)
async def flood_with_sessions_and_streams(at: Scene) -> None:
    before = _resident()
    token = at.identities.tokens["mallory"]
    async with _trained_meanwhile(at), AsyncExitStack() as stack:
        trainer = b"m" * 16
        for number in range(600):
            at.tried += 1
            stream = HandMade(await GrpcConnector(at.address, token=token).connect())
            stack.push_async_callback(stream.connection.close)
            await stream.send(Frame(hello=stream.hello(**({"trainer": trainer} if number % 2 else {}))))
            await stream.receive()
        stream = await at.stream()
        request = Request(call=pb.CallRequest(function="torch.neg"))
        for number in range(1, 1301):
            at.tried += 1
            nbytes = MIB if number <= 200 else SMALL_BYTES
            await stream.send(Frame(number=number, request=request, payload_bytes=nbytes), bytes(1000))
        refused = [await stream.receive() for _ in range(1100 - at.server.engine.limits.max_in_flight)]
        are_refused = all(each.reply.error.code == ErrorCode.ERROR_OVERLOADED for each in refused)
        at.hold(are_refused, "a small message was let in while too many were not whole")
        at.hold(_resident() - before < 200 * MIB, f"it has taken {(_resident() - before) / MIB:.0f} MB")


@attack(
    "announces messages of 2^62 bytes, nests values and requests, and sends requests that wait for each other",
    "each is refused before memory is taken, and the stream goes on",
)
async def send_messages_that_are_too_large(at: Scene) -> None:
    before = _resident()
    ps = await at.connect("mallory")
    counter = await ps.create(COUNTER)
    stream = await at.stream()
    call = pb.CallRequest(target=counter.ref.to_message(), method="echo")
    for nbytes in (1 << 62, (1 << 64) - 1, 1 << 40):
        at.tried += 1
        await stream.send(Frame(number=at.tried, request=Request(call=call), payload_bytes=nbytes), bytes(100))
        error = (await stream.receive()).reply.error
        at.hold(error.code == ErrorCode.ERROR_TOO_LARGE, f"{nbytes}: {error}")
    deep = Request(call=call, depth=1 << 30)
    at.hold((await at.ask(stream, deep)).code, "a request that is nested a thousand million times is answered")
    value = pb.CallRequest(target=counter.ref.to_message(), method="echo")
    nested = value.args
    for _ in range(30):
        nested = nested.list.items.add()
    at.hold((await at.ask(stream, Request(call=value))).code, "a value that is nested too deeply is answered")
    at.hold(_resident() - before < 100 * MIB, f"it has taken {(_resident() - before) / MIB:.0f} MB")


@attack(
    "pushes gradients that are 64 MB of zeros compressed to a few kB, for a parameter of 8 numbers, 50 times",
    "each is refused before it is decompressed, and memory stays where it was",
)
async def push_a_compression_bomb(at: Scene) -> None:
    ps = await at.connect("mallory")
    net = await ps.module("torch.nn.Linear", 4, 2, name="net")
    await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, name="opt")
    bomb = Zstd().encode(torch.zeros(16 * MIB))
    sgd = next(each.ref for each in at.server.engine.registry.objects() if each.name == "opt")
    stream = await at.stream()
    before = _resident()
    for _ in range(50):
        gradients = Encoder(None).encode([bomb, bomb])
        request = pb.PushRequest(
            optimizer=sgd.to_message(), target=net.ref.to_message(), positions=[0, 1], steps=[0, 0], gradients=gradients
        )
        error = await at.ask(stream, Request(push=request))
        at.hold("67108864 bytes instead of" in error.message, f"{error}")
    at.hold(_resident() - before < 60 * MIB, f"it has taken {(_resident() - before) / MIB:.0f} MB")
