"""Bytes that are held for trainers: each storage once, for as long as something holds it."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from ps_service.memory.held import Held, HeldByAll, Share, size
from ps_wire.errors import OverloadedError
from ps_wire.limits import Limits


def test_views_of_one_storage_count_once_and_until_the_last_has_gone() -> None:
    held = Held()
    x = torch.zeros(10, 10)
    one = held.shares([x, x[2:], {"a": x.t()}])
    assert held.nbytes == 400
    two = held.shares(x)
    del one
    assert held.nbytes == 400
    del two
    assert held.nbytes == 0


def test_a_reused_address_counts_with_its_new_size() -> None:
    held = Held()
    buffer = torch.zeros(100)
    kept = held.shares(buffer)
    buffer.untyped_storage().resize_(40)
    again = held.shares(buffer)
    assert held.nbytes in (400 + 40, 40)
    del kept, again
    assert held.nbytes == 0


def test_an_old_share_of_a_reused_address_does_not_end_the_new_one() -> None:
    held = Held()
    buffer = torch.zeros(100)
    storage = buffer.untyped_storage()
    old = held.share(storage)
    # Mostly the same address, with another size.
    storage.resize_(99 * 4)
    new = held.share(storage)
    del old
    assert held.share(storage) is new and held.nbytes == 396
    del new
    assert held.nbytes == 0 and not held._shares


@pytest.mark.filterwarnings("ignore:Sparse CS:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_tensors_count_with_their_indices(layout: torch.layout) -> None:
    held = Held()
    x = torch.eye(3).to_sparse(layout=layout)
    shares = held.shares(x)
    assert held.nbytes >= size(x) > 12
    del shares
    assert held.nbytes == 0


def test_a_share_can_grow() -> None:
    held = Held()
    share = Share(held)
    share.resize(10)
    share.resize(4)
    assert held.nbytes == 4
    del share
    assert held.nbytes == 0


def test_a_garbage_collection_during_the_sum_does_not_wait() -> None:
    held = Held()
    cycle: list[object] = [Share(held, 5)]
    cycle.append(cycle)
    del cycle
    with held._adding_up:
        gc.collect()
    assert held.nbytes == 0


def test_threads_lose_nothing() -> None:
    held = Held()
    tensors = [torch.zeros(n + 1, dtype=torch.uint8) for n in range(8)]

    def work() -> None:
        for _ in range(500):
            held.shares(tensors)
            _ = held.nbytes

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held.nbytes == 0


def test_each_trainer_has_a_limit_of_its_own() -> None:
    held = HeldByAll(Limits(max_context_bytes=100))
    kept = held.of(b"a").shares(torch.zeros(25))
    with pytest.raises(OverloadedError, match=r"hold 100 bytes; the limit is 100.*max_context_bytes"):
        held.check(b"a")
    held.check(b"b")
    assert (held.nbytes, held.refusals) == (100, 1)
    kept.clear()
    held.check(b"a")
    assert held.nbytes == 0


def test_without_a_number_it_is_half_of_the_memory() -> None:
    held = HeldByAll(Limits())
    kept = [Share(held.of(b"a"), 1 << 60)]
    with pytest.raises(OverloadedError):
        held.check(b"a")
    del kept


def test_trainers_that_come_and_go_leave_few_counters() -> None:
    held = HeldByAll(Limits())
    first = held.of(b"first")
    assert held.of(b"first") is first
    shares = [Share(held.of(b"held"), 7)]
    for number in range(1000):
        assert held.of(number.to_bytes(16)).nbytes == 0
    del first
    assert len(held._of) < 100
    assert held.of(b"held").nbytes == held.nbytes == 7
    shares.clear()
    assert held.nbytes == 0


def test_bytes_count_for_a_trainer_whoever_pays_for_them() -> None:
    held = HeldByAll(Limits(max_context_bytes=100))
    pays = {b"a": Held(), b"owner": Held()}
    held.others_of = lambda payer: (pays[payer],)
    kept = [Share(held.of(b"a"), 30), Share(held.of(b"a", b"owner"), 30)]
    assert [each.nbytes for each in pays.values()] == [30, 30]
    before, pays[b"a"] = pays[b"a"], Held()  # it has gone to another namespace
    kept.append(Share(held.of(b"a"), 40))
    assert (before.nbytes, pays[b"a"].nbytes, held.nbytes, held.largest) == (30, 40, 100, 100)
    with pytest.raises(OverloadedError, match="hold 100 bytes"):
        held.check(b"a")
    kept.clear()
    assert [each.nbytes for each in (before, *pays.values())] == [0, 0, 0] and held.nbytes == 0
