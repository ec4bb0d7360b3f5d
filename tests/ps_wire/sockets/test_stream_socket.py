"""The socket under a connection: every byte arrives in order, however many pieces it is written in."""

from __future__ import annotations

import asyncio
import socket
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.shared_memory.connection import UnixSocket
from ps_wire.sockets.stream_socket import StreamSocket, joined
from ps_wire.sockets.tcp_socket import TcpSocket
from tests.cases import case

IOV_MAX = 1024


class Collecting:
    """Keeps what arrives."""

    def __init__(self) -> None:
        self.arrived = bytearray()
        self.buffer = memoryview(bytearray(4096))

    def read(self, nbytes: int) -> None:
        self.arrived += self.buffer[:nbytes]


async def carried(writes: list[list[bytes]], kind: type[StreamSocket] = UnixSocket) -> bytes:
    """What arrives of some writes, each of many pieces."""
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    collecting, ended = Collecting(), asyncio.Event()
    broken: list[str] = []

    def gone(reason: str) -> None:
        broken.append(reason)
        ended.set()

    writer, reader = kind(near, Collecting(), broken.append), kind(far, collecting, gone)
    async with asyncio.timeout(50):
        for pieces in writes:
            writer.write(pieces)
        await writer.drained.wait()
        writer.close()
        await ended.wait()
    reader.close()
    assert len(broken) == 1
    return bytes(collecting.arrived)


@pytest.mark.parametrize("kind", [StreamSocket, UnixSocket])
@pytest.mark.parametrize("nbytes", [1, 64, 4096, 4097])
async def test_more_pieces_than_the_kernel_takes_at_once_arrive(nbytes: int, kind: type[StreamSocket]) -> None:
    # Those that are not joined with others are as many at the kernel; of small ones it takes many to be too many.
    for count in (IOV_MAX - 1, IOV_MAX, IOV_MAX + 1, *([5000] if nbytes <= 64 else [])):
        pieces = [bytes([number % 251]) * nbytes for number in range(count)]
        with case(count):
            assert await carried([pieces], kind) == b"".join(pieces)


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 3, 64, 4096, 4097, 70_000]), max_size=8), max_size=4), st.integers(1, 900)
)
def test_pieces_of_any_size_and_number_arrive_in_order(sizes: list[list[int]], times: int) -> None:
    offsets = list(accumulate(size for write in sizes for size in write))
    numbered = iter(offsets)
    writes = [[bytes([next(numbered) % 256]) * size for size in write] for write in sizes]
    # Many small pieces after a few large ones, in every write.
    writes = [[*write, *([b"ab", b"c"] * times)] for write in writes]
    assert asyncio.run(carried(writes)) == b"".join(piece for write in writes for piece in write)


@given(st.lists(st.integers(0, 6000).map(lambda size: b"x" * size), max_size=50))
def test_joined_pieces_are_the_same_bytes_in_fewer(pieces: list[bytes]) -> None:
    few = joined(pieces)
    assert b"".join(few) == b"".join(pieces)
    assert len(few) <= len([piece for piece in pieces if piece]) and all(few)


def test_small_pieces_are_joined_and_large_ones_are_not_copied() -> None:
    large = bytearray(8192)
    few = joined([b"a", b"b", large, *([b"c" * 64] * 2000)])
    assert few[:2] == [b"ab", large] and few[1] is large
    assert len(few) == 2 + -(-2000 * 64 // (64 * 1024))


async def test_a_socket_that_the_loop_cannot_watch_any_more_is_broken_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    broken: list[str] = []
    tcp = TcpSocket(near, Collecting(), broken.append)
    tcp.pause()

    def refuse(*_: object) -> None:
        raise RuntimeError("unable to perform operation on <UVPoll closed=True>; the handler is closed")

    with far, monkeypatch.context() as patch:
        # As uvloop does after an error of the socket.
        patch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
        await tcp.finish(20.0)
    assert tcp.is_closed and tcp.ended.is_set()
    assert len(broken) == 1 and "the handler is closed" in broken[0]
