"""Measures the floors: the time that the machine, gRPC and torch take without any code of this project.

`python -m benchmarks.floors` prints them. A result of `make bench` cannot be lower than its floors: two messages on a
socket, the hand-over between a waiting thread and the event loop, the bytes of a payload through TCP and through gRPC's
own stream, the copies of a tensor, and the kernels of torch.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, Final

import grpc
import numpy as np
import torch
import uvloop
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.sizes import FULL
from ps_wire.connections.buffers import teach_malloc
from ps_wire.limits import MIB, PART_BYTES

_METHOD: Final = "/floors/Echo"
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", 2 * PART_BYTES),
    ("grpc.max_send_message_length", 2 * PART_BYTES),
]
_SIZES: Final = {"4 B": 4, "64 KiB": 64 * 1024, "1 MiB": MIB, "16 MiB": 16 * MIB, "64 MiB": 64 * MIB}
_SMALL: Final = bytes(100)
"""About the size of an empty call on the wire."""


def main() -> None:
    """Measures and prints the floors."""
    torch.set_num_threads(1)
    teach_malloc()
    table = Table("floor", "median", "unit")
    for name, seconds in [*_through_a_socket(), *_through_tcp(), *_through_grpc(), *_copies(), *_kernels()]:
        table.add_row(name, f"{seconds * 1e6:,.0f}", "us")
    Console().print(table)


def _median(operation: Callable[[], object], count: int) -> float:
    times = []
    for _ in range(count + count // 5 + 1):
        began = perf_counter()
        operation()
        times.append(perf_counter() - began)
    return statistics.median(times[-count:])


async def _median_of(operation: Callable[[], Awaitable[object]], count: int) -> float:
    times = []
    for _ in range(count + count // 5 + 1):
        began = perf_counter()
        await operation()
        times.append(perf_counter() - began)
    return statistics.median(times[-count:])


# A message there and back through a Unix socket, between two event loops


class _Pong(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: Any = None
        self.arrived: Callable[[], object] = lambda: None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.arrived()

    def ping(self) -> None:
        self._transport.write(_SMALL)


class _Echo(_Pong):
    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


def _echo_on_a_socket(sock: socket.socket) -> None:
    async def hold() -> None:
        _, protocol = await asyncio.get_running_loop().create_unix_connection(_Echo, sock=sock)
        ended = asyncio.Event()
        protocol.connection_lost = lambda _: ended.set()  # type: ignore[method-assign]
        await ended.wait()

    uvloop.run(hold())


def _through_a_socket() -> list[tuple[str, float]]:
    here, there = socket.socketpair()
    peer = multiprocessing.get_context("spawn").Process(target=_echo_on_a_socket, args=(there,), daemon=True)
    peer.start()
    there.close()
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    results = asyncio.run_coroutine_threadsafe(_ping(here, peer), loop)
    within, protocol = results.result()
    woken = threading.Lock()
    woken.acquire()
    protocol.arrived = woken.release

    def waiting() -> None:
        loop.call_soon_threadsafe(protocol.ping)
        woken.acquire()

    from_a_thread = _median(waiting, 3000)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    here.close()
    peer.terminate()
    peer.join()
    return [
        ("a small message there and back, Unix socket", within),
        ("the same for a thread that waits", from_a_thread),
    ]


async def _ping(sock: socket.socket, _: object) -> tuple[float, _Pong]:
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_unix_connection(_Pong, sock=sock)

    async def ping() -> None:
        future = loop.create_future()
        protocol.arrived = lambda: future.set_result(None)
        protocol.ping()
        await future

    return await _median_of(ping, 3000), protocol


# Bytes there and back through a TCP socket, between two threads that do nothing else


def _echo_over_tcp(ready: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ready.send(server.getsockname()[1])
        sock, _ = server.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    memory = memoryview(bytearray(max(_SIZES.values())))
    while nbytes := int.from_bytes(sock.recv(8, socket.MSG_WAITALL)):
        _receive_all(sock, memory[:nbytes])
        sock.sendall(memory[:nbytes])


def _receive_all(sock: socket.socket, memory: memoryview) -> None:
    while memory:
        nbytes = sock.recv_into(memory)
        if not nbytes:
            raise ConnectionError("the other side is gone")
        memory = memory[nbytes:]


def _through_tcp() -> list[tuple[str, float]]:
    context = multiprocessing.get_context("spawn")
    port, ready = context.Pipe(duplex=False)
    peer = context.Process(target=_echo_over_tcp, args=(ready,), daemon=True)
    peer.start()
    results = []
    with socket.create_connection(("127.0.0.1", port.recv())) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, nbytes in _SIZES.items():
            memory = memoryview(bytearray(nbytes))
            header = nbytes.to_bytes(8)

            def echo(header: bytes = header, memory: memoryview = memory) -> None:
                sent = sock.sendmsg((header, memory)) - len(header)
                sock.sendall(memory[sent:])
                _receive_all(sock, memory)

            results.append((f"{name} there and back, TCP socket", _median(echo, 300 if nbytes < MIB else 10)))
    peer.join()
    return results


# Bytes there and back through a bidirectional stream of grpc.aio, in parts, with nothing else around them


def _serve_grpc(ready: Connection) -> None:
    async def echo(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for part in requests:
            yield part

    async def serve() -> None:
        server = grpc.aio.server(options=_OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(echo)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("floors", {"Echo": handler}),))
        ready.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await server.wait_for_termination()

    teach_malloc()
    uvloop.run(serve())


def _through_grpc() -> list[tuple[str, float]]:
    context = multiprocessing.get_context("spawn")
    port, ready = context.Pipe(duplex=False)
    peer = context.Process(target=_serve_grpc, args=(ready,), daemon=True)
    peer.start()
    try:
        return uvloop.run(_echoes(f"127.0.0.1:{port.recv()}"))
    finally:
        peer.terminate()
        peer.join()


async def _echoes(address: str) -> list[tuple[str, float]]:
    results = []
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        stream = channel.stream_stream(_METHOD)()
        for name, nbytes in _SIZES.items():
            parts = [bytes(min(nbytes, PART_BYTES))] * max(1, nbytes // PART_BYTES)

            async def echo(parts: list[bytes] = parts) -> None:
                async def write() -> None:
                    for part in parts:
                        await stream.write(part)

                writing = asyncio.create_task(write())
                for _ in parts:
                    await stream.read()
                await writing

            results.append(
                (f"{name} there and back, gRPC stream of bytes", await _median_of(echo, 8 if len(parts) > 1 else 300))
            )
        stream.cancel()
    return results


# Memory and kernels


def _copies() -> list[tuple[str, float]]:
    results = []
    for name, nbytes in _SIZES.items():
        source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)

        def copy(source: Any = source, target: Any = target) -> None:
            target[:] = source

        results.append((f"one copy of {name}, into memory that is there", _median(copy, 30)))
    return results


def _kernels() -> list[tuple[str, float]]:
    rows, dim, bags, per_bag = FULL.table_rows, FULL.dim, FULL.bags, FULL.per_bag
    table = nn.EmbeddingBag(rows, dim, mode="sum", sparse=True)
    ids = torch.randint(0, rows, (bags, per_bag))
    weight = table.weight.detach()
    where = ids.view(-1)
    values = torch.randn(bags * per_bag, dim)
    gradient = torch.sparse_coo_tensor(where.unsqueeze(0), values, (rows, dim), check_invariants=True)

    def backward() -> None:
        table.weight.grad = None
        table(ids).sum().backward()

    def forward() -> None:
        with torch.no_grad():
            table(ids)

    return [
        ("emb_step: forward of the EmbeddingBag", _median(forward, 20)),
        ("emb_step: forward and backward", _median(backward, 20)),
        ("emb_step: SGD of torch on its sparse rows", _median(lambda: weight.add_(gradient, alpha=-0.01), 20)),
        (
            "emb_step: the same rows scattered (fused=True)",
            _median(lambda: weight.scatter_add_(0, where.unsqueeze(1).expand_as(values), values.mul(-0.01)), 20),
        ),
    ]


if __name__ == "__main__":
    main()
