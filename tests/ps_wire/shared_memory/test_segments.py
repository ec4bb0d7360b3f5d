"""Tests that segments are sent once, used again and given back."""

from __future__ import annotations

import fcntl
import gc
import os
from contextlib import suppress

import pytest
import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import MIB
from ps_wire.shared_memory.hosts import host_id
from ps_wire.shared_memory.segments import MOST, SMALLEST, SegmentPool, SegmentView

pytestmark = pytest.mark.skipif(not host_id(), reason="segments need Linux")


def view_of(pool: SegmentPool, limit: int = 64 * MIB) -> tuple[SegmentView, list[int]]:
    freed: list[int] = []
    return SegmentView(limit, lambda number, _: freed.append(number)), freed


def test_a_payload_is_read_without_a_copy() -> None:
    pool = SegmentPool(64 * MIB)
    segment = pool.take(1000)
    assert segment is not None
    segment.write([memoryview(b"abc"), memoryview(b"def")])
    view, _ = view_of(pool)
    view.add(segment.number, os.dup(segment.descriptor))
    read = view.bytes_of(segment.number, 6)
    assert read.tobytes() == b"abcdef"
    segment.write([memoryview(b"xyz")])
    assert read.tobytes() == b"xyzdef"
    pool.close()


def test_a_segment_is_given_back_when_the_last_tensor_over_it_dies() -> None:
    pool = SegmentPool(64 * MIB)
    segment = pool.take(4096)
    assert segment is not None
    view, freed = view_of(pool)
    view.add(segment.number, os.dup(segment.descriptor))
    whole = view.bytes_of(segment.number, 4096)
    tensor = torch.frombuffer(whole[64:128], dtype=torch.float32)
    part = tensor[2:]
    del whole, tensor
    gc.collect()
    assert freed == []
    del part
    gc.collect()
    assert freed == [segment.number]


@pytest.mark.parametrize(
    ("nbytes", "size"),
    [
        (1, SMALLEST),
        (SMALLEST + 1, 2 * SMALLEST),
        (33 * MIB, 64 * MIB),
        (65 * MIB, 80 * MIB),
        (640 * MIB, 640 * MIB),
        (641 * MIB, 768 * MIB),
    ],
)
def test_a_large_segment_is_little_larger_than_its_message(nbytes: int, size: int) -> None:
    pool = SegmentPool(1024 * MIB)
    segment = pool.take(nbytes)
    assert segment is not None and segment.nbytes == size == pool.nbytes
    pool.close()


def test_segments_that_came_back_are_used_again_the_smallest_that_fits_first() -> None:
    pool = SegmentPool(64 * MIB)
    large, small = pool.take(2 * MIB), pool.take(10)
    assert large is not None and small is not None
    assert (large.nbytes, small.nbytes) == (2 * MIB, SMALLEST)
    pool.give_back(large.number)
    pool.give_back(small.number)
    assert pool.take(100) is small
    assert pool.take(100) is large
    assert pool.nbytes == 2 * MIB + SMALLEST


def test_a_full_pool_drops_free_segments_for_another_size() -> None:
    pool = SegmentPool(4 * MIB)
    held = [pool.take(MIB) for _ in range(4)]
    assert pool.take(MIB) is None
    for segment in held:
        assert segment is not None
        os.close(segment.hand_over())
        pool.give_back(segment.number)
    assert pool.take(3 * MIB) is not None
    assert sorted(pool.take_dropped()) == [1, 2, 3, 4]
    assert pool.take_dropped() == []
    assert pool.nbytes == 4 * MIB


def test_a_segment_that_was_not_sent_cannot_be_given_back() -> None:
    pool = SegmentPool(4 * MIB)
    segment = pool.take(10)
    assert segment is not None
    pool.give_back(segment.number)
    for number in (segment.number, 99):
        with pytest.raises(InvalidArgumentError):
            pool.give_back(number)


def test_a_segment_can_neither_shrink_nor_grow() -> None:
    pool = SegmentPool(4 * MIB)
    segment = pool.take(10)
    assert segment is not None
    for nbytes in (0, 2 * segment.nbytes):
        with pytest.raises(OSError):
            os.ftruncate(segment.descriptor, nbytes)


def test_memory_that_could_shrink_under_its_reader_is_refused_and_closed() -> None:
    view, _ = view_of(SegmentPool(0))
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 4096)
    with pytest.raises(InvalidArgumentError, match="sealed"):
        view.add(1, unsealed)
    with pytest.raises(OSError):
        fcntl.fcntl(unsealed, fcntl.F_GETFD)
    ordinary = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises(InvalidArgumentError):
        view.add(1, ordinary)


def test_more_memory_than_was_agreed_is_refused() -> None:
    pool = SegmentPool(64 * MIB)
    view, _ = view_of(pool, limit=MIB)
    first, second = pool.take(2 * MIB), pool.take(2 * MIB)
    assert first is not None and second is not None
    view.add(first.number, os.dup(first.descriptor))
    with pytest.raises(InvalidArgumentError, match="more shared memory"):
        view.add(second.number, os.dup(second.descriptor))


@pytest.mark.parametrize(("number", "nbytes"), [(7, 10), (1, SMALLEST + 1)])
def test_bytes_that_are_not_there_are_refused(number: int, nbytes: int) -> None:
    pool = SegmentPool(64 * MIB)
    segment = pool.take(10)
    assert segment is not None
    view, _ = view_of(pool)
    view.add(segment.number, os.dup(segment.descriptor))
    with pytest.raises(InvalidArgumentError):
        view.bytes_of(number, nbytes)


def test_there_are_only_so_many() -> None:
    pool = SegmentPool(1 << 40)
    taken = [pool.take(1) for _ in range(MOST + 3)]
    assert [each is None for each in taken] == [False] * MOST + [True] * 3
    pool.close()


def test_a_segment_costs_no_descriptor_once_it_was_handed_over() -> None:
    def opened() -> int:
        """Descriptors of shared memory: connections of earlier tests may be closing others."""
        found = 0
        for each in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # that of the directory itself
                found += os.readlink(f"/proc/self/fd/{each}").startswith("/memfd:ps-shm")
        return found

    pool, before = SegmentPool(64 * MIB), opened()
    view, _ = view_of(pool)
    held = []
    for number in range(50):
        segment = pool.take(1000)
        assert segment is not None
        segment.write([memoryview(bytes([number]) * 1000)])
        view.add(segment.number, segment.hand_over())
        held.append(view.bytes_of(segment.number, 1000))
    assert opened() == before
    assert [int(each[999]) for each in held] == list(range(50))
    assert (len(view.mapped), len(view.lent)) == (50, 50)
    held.clear()
    gc.collect()
    assert not view.lent
    pool.close()
    assert opened() == before


def test_many_small_free_segments_do_not_prevent_a_large_one() -> None:
    pool = SegmentPool(512 * MIB)
    small = [pool.take(1) for _ in range(MOST)]
    assert pool.take(1) is None and pool.take(MIB) is None
    for segment in small:
        assert segment is not None
        pool.give_back(segment.number)
    large = pool.take(MIB)
    assert large is not None and large.nbytes == MIB
    # And not one more was dropped than needed.
    assert pool.nbytes == (MOST - 1) * SMALLEST + MIB
    pool.close()


def test_a_huge_segment_does_not_stay_because_small_messages_use_it() -> None:
    pool = SegmentPool(64 * MIB)
    huge = pool.take(32 * MIB)
    assert huge is not None
    pool.give_back(huge.number)
    small = pool.take(1)
    assert small is not None and small.nbytes == SMALLEST
    # When there is no room for another, it is better than none.
    pool.give_back(small.number)
    full = [pool.take(32 * MIB), pool.take(32 * MIB)]
    assert all(full) and pool.take(1) is None
    pool.close()


def test_segments_that_were_not_used_for_a_while_are_dropped_the_others_stay() -> None:
    pool = SegmentPool(64 * MIB)
    taken = [pool.take(MIB) for _ in range(3)]
    for segment in taken[:2]:
        assert segment is not None
        os.close(segment.hand_over())
        pool.give_back(segment.number)
    pool.trim(60.0)
    assert pool.nbytes == 3 * MIB
    pool.trim(0.0)
    assert pool.nbytes == MIB and pool.take_dropped() == [1, 2]
    pool.close()


def test_more_than_fits_drops_nothing() -> None:
    pool = SegmentPool(4 * MIB)
    segment = pool.take(MIB)
    assert segment is not None
    pool.give_back(segment.number)
    assert pool.take(8 * MIB) is None
    assert pool.nbytes == MIB
    pool.close()
