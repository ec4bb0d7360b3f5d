"""Counts how many times the bytes of a tensor are copied on the way to an owner and back."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_wire.codec import payload
from ps_wire.connections import assembler, frames
from ps_wire.connections.frames import Packet
from ps_wire.limits import MIB, PART_BYTES
from ps_wire.shared_memory import segments
from ps_wire.shared_memory.hosts import host_id
from tests.conftest import StartOwner
from tests.transports import TRANSPORTS

COUNTER = "tests.hosted_models.Counter"

NBYTES = 16 * MIB


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes copied so far, by place, on both sides: owner and trainer share this process."""
    counter: Counter[str] = Counter()

    def count(where: str, owner: Any, name: str, size: Callable[..., int]) -> None:
        original = getattr(owner, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            counter[where] += size(result, *args)
            return result

        monkeypatch.setattr(owner, name, counting)

    def of_chunks(_: Any, __: Any, chunks: Sequence[memoryview]) -> int:
        return sum(map(len, chunks))

    def of_copied_chunks(_: Any, partial: assembler._Partial, chunks: Sequence[memoryview]) -> int:
        # Those that were received into their place are there already.
        return sum(len(each) for each in chunks if not np.shares_memory(np.frombuffer(each, np.uint8), partial.buffer))

    count("into a segment", segments.Segment, "write", of_chunks)
    count("into a frame", frames, "serialize", lambda data, _: len(data))
    count("out of parts", assembler._Partial, "add", of_copied_chunks)
    count("together", payload, "joined", lambda buffer, *_: len(buffer))
    count("clone", torch.Tensor, "clone", lambda tensor, *_: tensor.nbytes)
    return counter


async def echoed(owner: Server, transport: str, counter: Counter[str]) -> tuple[dict[str, float], int]:
    """Copies per echoed byte, by place; and the most memory that Python and numpy had for one echo."""
    value = torch.arange(NBYTES // 4, dtype=torch.int32)
    async with tc.connect(owner.address, **TRANSPORTS[transport]) as ps:
        hosted = await ps.create(COUNTER)
        # Buffers and segments exist after the first ones.
        for _ in range(3):
            assert torch.equal(await hosted.echo(value), value)
        counter.clear()
        tracemalloc.start()
        try:
            result = await hosted.echo(value)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert torch.equal(result, value)
        return {where: round(nbytes / NBYTES, 2) for where, nbytes in counter.items() if nbytes > MIB}, peak


@pytest.mark.skipif(not host_id(), reason="shared-memory connections need Linux")
async def test_over_shared_memory_one_copy_in_and_none_out(copied: Counter[str], start_owner: StartOwner) -> None:
    places, peak = await echoed(await start_owner(), "shared_memory", copied)
    assert places == {"into a segment": 2.0}
    assert peak < MIB


async def test_over_grpc_two_copies_each_way(copied: Counter[str], start_owner: StartOwner) -> None:
    # Those inside gRPC are not ours to count.
    places, peak = await echoed(await start_owner(), "grpc", copied)
    assert places == {"into a frame": 2.0, "out of parts": 2.0}
    # Only a few parts exist at a time: there is no second copy of the whole message.
    assert peak < NBYTES // 2


async def test_over_a_direct_connection_only_the_first_part_is_copied(
    copied: Counter[str], start_owner: StartOwner
) -> None:
    places, peak = await echoed(await start_owner(), "direct", copied)
    assert places == {"out of parts": round(2 * PART_BYTES / NBYTES, 2)}
    assert peak < 4 * MIB


def test_a_packet_of_the_other_kind_would_be_seen(copied: Counter[str]) -> None:
    frames.serialize(Packet(frames.Frame(), (memoryview(bytes(5)),)))
    payload.joined([memoryview(bytes(3))], 3)
    torch.zeros(2).clone()
    assert copied["into a frame"] == 7 and copied["together"] == 3 and copied["clone"] == 8
