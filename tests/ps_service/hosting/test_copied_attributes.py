"""Bound copies and plain attributes: what a run sets is kept, and nothing of one run shows up in another."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from ps_service.hosting.bound_copy_pool import BoundCopies
from ps_service.hosting.histories import reaches_ended
from ps_service.hosting.structure import tensors_below
from ps_wire.numerics.autograd_graph import reached_from
from tests.ps_service.hosting.host import Host, bound
from tests.ps_service.threads import PATIENCE, Worker


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def pool(host: Host) -> BoundCopies:
    return BoundCopies(host)


def test_counters_count(host: Host, pool: BoundCopies) -> None:
    for training in (True, False, True):
        with bound(pool, host, training) as bound_copy:
            bound_copy.calls += 1
    assert host.calls == 3


@pytest.mark.parametrize(
    "value",
    [None, 0, [1, 2], {"a": torch.ones(2)}, torch.ones(2), nn.ReLU().forward, threading.Lock()],
    ids=lambda value: type(value).__name__,
)
def test_attributes_of_a_run_stay_for_later_runs(host: Host, pool: BoundCopies, value: Any) -> None:
    with bound(pool, host, training=False), bound(pool, host) as bound_copy:
        bound_copy.__dict__["cache"] = value
    assert host.__dict__["cache"] is value
    for training in (True, False):
        with bound(pool, host, training) as one, bound(pool, host, training) as other:
            assert one.cache is other.cache is value


def test_attributes_of_submodules_are_kept_too(host: Host, pool: BoundCopies) -> None:
    with bound(pool, host) as bound_copy:
        bound_copy.layer.note = "seen"
    assert host.layer.note == "seen"


def test_an_attribute_that_a_run_deletes_is_gone(host: Host, pool: BoundCopies) -> None:
    with bound(pool, host) as bound_copy:
        del bound_copy.calls
    assert not hasattr(host, "calls")
    with bound(pool, host) as bound_copy:
        assert not hasattr(bound_copy, "calls")


def test_attributes_set_at_the_module_are_seen_by_the_next_run(host: Host, pool: BoundCopies) -> None:
    with bound(pool, host) as bound_copy:
        host.calls = 5
        assert bound_copy.calls == 0
    with bound(pool, host) as bound_copy:
        assert bound_copy.calls == 5
    host.calls = 6
    with bound(pool, host) as bound_copy:
        assert bound_copy.calls == 6


def test_a_run_without_changes_does_not_undo_those_of_another(host: Host, pool: BoundCopies) -> None:
    with bound(pool, host) as slow:
        with bound(pool, host) as inline:
            inline.calls += 1
            inline.fresh = "new"
        assert slow.calls == 0
    assert host.calls == 1
    assert host.fresh == "new"


def test_a_run_without_deletions_does_not_delete_attributes(host: Host, pool: BoundCopies) -> None:
    with bound(pool, host):
        host.fresh = "new"
    assert host.fresh == "new"


def test_changes_while_a_copy_is_made_are_not_part_of_the_mode() -> None:
    class Busy(Host):
        def train(self, mode: bool = True) -> Busy:
            busy.calls += 1  # as another run does that ends at this moment
            super().train(mode)
            return self

    busy = Busy()
    pool = BoundCopies(busy)
    with bound(pool, busy):
        pass
    assert busy.calls == 1
    with bound(pool, busy) as bound_copy:
        assert bound_copy.calls == 1
        bound_copy.calls += 1
    assert busy.calls == 2


@pytest.mark.parametrize("wrap", [lambda y: y, lambda y: [y], lambda y: {"deep": ("er", [y])}], ids=["bare", "1", "3"])
def test_a_tensor_with_a_history_is_stored_without_it(host: Host, pool: BoundCopies, wrap: Any) -> None:
    with bound(pool, host) as bound_copy:
        computed = bound_copy.weight * 2
        bound_copy.last, bound_copy.again = wrap(computed), wrap(computed)
    assert computed.requires_grad, "what the run itself holds is as it was"
    with bound(pool, host) as bound_copy:
        found, again = [*_tensors(bound_copy.last)], [*_tensors(bound_copy.again)]
        assert found[0] is again[0], "the same tensor in both places"
        assert found[0].tolist() == [2.0, 2.0]
        assert not found[0].is_leaf
        assert not reached_from(found, type(computed.grad_fn))[1]
        assert reaches_ended([found[0] * bound_copy.weight])
        assert not reaches_ended([found[0].detach() * bound_copy.weight])


def test_writes_to_a_state_are_seen_by_graphs_that_saved_it(host: Host, pool: BoundCopies) -> None:
    with bound(pool, host) as bound_copy:
        computed = bound_copy.last = bound_copy.weight.exp()
    with bound(pool, host) as bound_copy, torch.no_grad():
        bound_copy.last.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        computed.sum().backward()


def test_a_tensor_with_an_earlier_history_keeps_it(host: Host) -> None:
    host.computed = host.weight * 2
    pool = BoundCopies(host)
    parameters = list(host.parameters())
    bound_copy = pool.lend(True, parameters, [parameter.data for parameter in parameters])
    pool.take_back(True, bound_copy, {id(host.computed)})
    assert not reaches_ended([host.computed])


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    assert tensors_below(value, found, 100)
    return found


def test_a_skin_that_waits_holds_nothing_of_its_last_run(host: Host, pool: BoundCopies) -> None:
    with bound(pool, host) as bound_copy:
        result = bound_copy.weight * 2
        bound_copy.last = result
        gone = weakref.ref(result)
    del result
    gc.collect()
    assert gone() is None


def test_references_to_the_module_become_references_to_the_copy(host: Host) -> None:
    host.__dict__["direct"] = host.layer
    host.bound = host.method
    pool = BoundCopies(host)
    for _ in range(2):
        with bound(pool, host) as bound_copy:
            assert bound_copy.direct is bound_copy.layer is not host.layer
            assert bound_copy.bound() is bound_copy.weight is not host.weight
    assert host.bound() is host.weight
    with bound(pool, host) as bound_copy:
        bound_copy.bound = None
    assert host.bound is None
    with bound(pool, host) as bound_copy:
        assert bound_copy.bound is None


def test_containers_keep_their_kinds(host: Host) -> None:
    class Ordered(dict[str, Any]):
        """A dict of the user's own."""

    class Listed(list[Any]):
        """A list of the user's own."""

    host.ordered, host.listed, host.plain = Ordered(a=host.layer), Listed([host.layer]), (host.layer, 1)
    with bound(BoundCopies(host), host) as bound_copy:
        assert type(bound_copy.ordered) is Ordered
        assert type(bound_copy.listed) is Listed
        assert type(bound_copy.plain) is tuple
        assert bound_copy.ordered["a"] is bound_copy.listed[0] is bound_copy.plain[0] is bound_copy.layer


def test_containers_that_lead_nowhere_are_shared(host: Host) -> None:
    host.log = ["written to", {"by": "all"}]
    with bound(BoundCopies(host), host) as bound_copy:
        bound_copy.log.append("runs")
    assert host.log == ["written to", {"by": "all"}, "runs"]


def test_hooks_may_come_and_go_during_a_run(host: Host) -> None:
    host.layer.register_forward_hook(host.double)
    with bound(BoundCopies(host), host) as bound_copy:
        once = bound_copy.layer(torch.ones(1, 2))
        handle = bound_copy.layer.register_forward_hook(lambda module, args, output: output + 1)
        assert torch.equal(bound_copy.layer(torch.ones(1, 2)), once + 1)
        handle.remove()
        assert torch.equal(bound_copy.layer(torch.ones(1, 2)), once)


def test_a_run_that_raises_leaves_everything_in_order(host: Host, pool: BoundCopies) -> None:
    with pytest.raises(ZeroDivisionError), bound(pool, host) as bound_copy:
        bound_copy.calls += 1
        raise ZeroDivisionError
    assert host.calls == 1
    with bound(pool, host) as again:
        assert torch.equal(again.weight, host.weight)


def test_threads_never_share_a_skin(host: Host, pool: BoundCopies) -> None:
    threads, rounds = 4, 25
    barrier = threading.Barrier(threads)
    inside: set[int] = set()

    def run() -> None:
        for _ in range(rounds):
            barrier.wait(PATIENCE)
            with bound(pool, host) as bound_copy:
                assert id(bound_copy) not in inside
                inside.add(id(bound_copy))
                torch.autograd.grad(bound_copy.layer(torch.ones(1, 2)).sum(), bound_copy.layer.weight)
                barrier.wait(PATIENCE)
                inside.remove(id(bound_copy))

    for worker in [Worker(run) for _ in range(threads)]:
        worker.result()
    assert not inside
