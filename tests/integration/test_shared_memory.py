"""Tests that clients use shared memory where they can, and that results are the same without it."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_wire.connections.connection import ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.limits import MIB, PROTOCOL, Limits
from ps_wire.shared_memory.connection import SharedMemoryConnection
from ps_wire.shared_memory.hosts import host_id
from ps_wire.v1.frames_pb2 import Frame, Hello, SharedMemoryOffer
from tests.conftest import OwnerProcess, StartOwner, StartProcess
from tests.socket_writes import noted_writes
from trainer_client.transport.grpc_stream import GrpcConnector
from trainer_client.transport.offers import open_shared_memory

pytestmark = pytest.mark.skipif(not host_id(), reason="shared-memory connections need Linux")

COUNTER = "tests.hosted_models.Counter"


async def test_a_trainer_of_the_same_host_uses_shared_memory(ps: tc.Client) -> None:
    assert (await ps.status()).shared_memory_connections == 1


async def test_the_stream_it_came_from_ends_in_order(owner: Server) -> None:
    connector = GrpcConnector(owner.address)
    streams = [await connector.connect(), await connector.connect()]
    for stream in streams:
        await stream.send(Packet(Frame(hello=Hello(protocol=PROTOCOL, trainer=b"a" * 16))))
        assert await stream.receive() is not None
    # An end, not silence, and no cancellation.
    assert await streams[0].receive() is None
    await streams[1].close()


async def test_shared_memory_can_be_switched_off_on_either_side(owner: Server, start_owner: StartOwner) -> None:
    async with tc.connect(owner.address, shared_memory=False) as ps:
        assert (await ps.status()).shared_memory_connections == 0
    without = await start_owner("ps1", limits=Limits(max_segment_bytes=0))
    async with tc.connect(without.address) as ps:
        assert (await ps.status()).shared_memory_connections == 0


async def test_the_command_line_can_switch_off_shared_memory(start_process: StartProcess) -> None:
    process = await start_process("--no-shared-memory")
    async with tc.connect(process.address) as ps:
        assert (await ps.status()).shared_memory_connections == 0


@pytest.mark.parametrize("nbytes", [0, 4, 32 * 1024, 33 * 1024, MIB, 5 * MIB + 4])
async def test_tensors_of_every_size_come_back_as_they_went(ps: tc.Client, nbytes: int) -> None:
    counter = await ps.create(COUNTER)
    value = torch.arange(nbytes // 4, dtype=torch.int32)
    for _ in range(3):
        assert torch.equal(await counter.echo(value), value)


async def test_segments_are_used_again(ps: tc.Client) -> None:
    counter = await ps.create(COUNTER)
    value = torch.ones(MIB)
    shared = []
    for _ in range(20):
        assert torch.equal(await counter.echo(value), value)
        shared.append((await ps.status()).shared_bytes)
    assert 4 * MIB <= shared[-1] <= 12 * MIB
    assert shared[-1] == shared[9]


async def test_a_message_without_a_waiter_is_sent_with_the_next_one(
    ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = await ps.module("torch.nn.Linear", 4, 4)
    await net(torch.ones(4))
    writes = noted_writes(monkeypatch)
    for _ in range(4):
        async with ps.context():
            await net(torch.ones(4))
    # Four calls and four answers; the ends of three contexts went with them. Timers may have come in between.
    assert 8 <= len(writes) < 14
    assert (await ps.status()).contexts == 0


async def test_segments_come_back_without_a_message_when_many_are_free(
    owner: Server, ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = await ps.create(COUNTER)
    kept = [await counter.echo(torch.full((MIB // 4,), float(number))) for number in range(8)]
    (shared_memory,) = owner.servicer.shared_memory._connections.values()
    came_back: asyncio.Queue[int] = asyncio.Queue()
    original = shared_memory._pool.give_back

    def noticed(number: int) -> None:
        original(number)
        came_back.put_nowait(number)

    monkeypatch.setattr(shared_memory._pool, "give_back", noticed)
    kept.clear()
    gc.collect()
    # Nothing else is sent meanwhile.
    async with asyncio.timeout(60):
        assert len({await came_back.get() for _ in range(4)}) == 4


async def test_results_that_are_kept_keep_their_numbers(ps: tc.Client) -> None:
    counter = await ps.create(COUNTER)
    kept = [await counter.echo(torch.full((MIB // 4,), float(number))) for number in range(12)]
    gc.collect()
    await asyncio.gather(*(counter.echo(torch.zeros(MIB // 4)) for _ in range(12)))
    assert [int(tensor.unique().item()) for tensor in kept] == list(range(12))


async def test_full_shared_memory_sends_through_the_socket(start_owner: StartOwner) -> None:
    small = await start_owner("small", limits=Limits(max_segment_bytes=MIB))
    async with tc.connect(small.address) as ps:
        counter = await ps.create(COUNTER)
        values = [torch.full((MIB,), float(number)) for number in range(4)]
        results = await asyncio.gather(*(counter.echo(value) for value in values))
        assert all(torch.equal(result, value) for result, value in zip(results, values, strict=True))
        assert (await ps.status()).shared_bytes <= MIB


async def test_messages_sent_before_a_close_are_still_read() -> None:
    near, far = (SharedMemoryConnection(each, MIB, MIB) for each in socket.socketpair())
    await far.send(Packet(Frame(number=7)))
    far.cut()
    with pytest.raises(ConnectionBroken):
        await near.send(Packet(Frame(number=1)))
    packet = await near.receive()
    assert packet is not None and packet.frame.number == 7
    with pytest.raises(ConnectionBroken):
        await near.receive()
    await near.close()


async def test_without_descriptors_the_socket_is_taken(ps: tc.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = await ps.create(COUNTER)

    def refused(*_: object) -> int:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(os, "memfd_create", refused)
    for value in (torch.ones(MIB // 2), torch.ones(5 * MIB)):
        assert torch.equal(await counter.echo(value), value)


async def test_a_pass_over_shared_memory_is_the_pass_without(owner: Server) -> None:
    states = []
    for shared_memory in (True, False):
        async with tc.connect(owner.address, shared_memory=shared_memory) as ps:
            net = await ps.module("torch.nn.Linear", 300, 200, seed=1)
            opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
            torch.manual_seed(0)
            for _ in range(3):
                async with ps.context() as ctx:
                    x = torch.randn(64, 300, requires_grad=True)
                    await ctx.backward((await net(x)).pow(2).mean())
                    await opt.step(ctx)
            states.append(await net.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


async def test_a_token_is_good_once_and_for_its_trainer(owner: Server) -> None:
    shared_memory_connections = owner.servicer.shared_memory
    first = Hello(protocol=PROTOCOL, trainer=b"a" * 16, host=host_id())
    offer = shared_memory_connections.offer(first)
    assert offer is not None
    for trainer, token, admitted in (
        (b"b" * 16, offer.token, False),
        (b"a" * 16, b"guess", False),
        (b"a" * 16, offer.token, False),
    ):
        shared_memory = open_shared_memory(offer, MIB)
        hello = Hello(protocol=PROTOCOL, trainer=trainer, shared_memory_token=token)
        await shared_memory.send(Packet(Frame(hello=hello)))
        answer = await shared_memory.receive()
        assert answer is not None and answer.frame.HasField("welcome") is admitted
        assert "token" in answer.frame.refusal.error.message
        await shared_memory.close()


async def test_trainers_of_other_hosts_are_offered_none(owner: Server) -> None:
    assert owner.servicer.shared_memory.offer(Hello(trainer=b"a" * 16, host="another")) is None
    assert owner.servicer.shared_memory.offer(Hello(trainer=b"a" * 16)) is None


async def test_garbage_on_the_socket_of_shared_memory_harms_none(owner: Server, ps: tc.Client) -> None:
    offer = owner.servicer.shared_memory.offer(Hello(trainer=b"a" * 16, host=host_id()))
    assert offer is not None
    for garbage in (b"\xff" * 64, b"", bytes(17), b"\x02" + bytes(16)):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(b"\0" + offer.socket)
            peer.sendall(garbage)
    counter = await ps.create(COUNTER)
    assert await counter.add(2) == 2


async def test_nothing_listens_without_shared_memory() -> None:
    with pytest.raises(ConnectionBroken):
        open_shared_memory(SharedMemoryOffer(socket=b"ps-shm-unknown"), MIB)


async def test_an_owner_that_is_killed_leaves_nothing_behind(owner_process: OwnerProcess) -> None:
    def named() -> set[str]:
        return {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "ps-shm-" in line}

    def opened() -> set[str]:
        """What the owner's process listens on."""
        held = set()
        for each in Path(f"/proc/{owner_process.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # the owner has closed it meanwhile
                held.add(os.readlink(each))
        lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines() if "ps-shm-" in line]
        return {line[-1] for line in lines if f"socket:[{line[-2]}]" in held}

    async with tc.connect(owner_process.address, reconnect_timeout=0.5) as ps:
        counter = await ps.create(COUNTER)
        await counter.echo(torch.ones(MIB))
        own = opened()
        assert own and own <= named()
        owner_process.process.kill()
        await owner_process.process.wait()
        with pytest.raises(tc.PsError):
            await counter.add()
    assert not own & named()
