"""Skins and plain attributes: what a run sets is kept, and nothing of one run shows up in another."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from ps_service.state.histories import reaches_ended
from ps_service.state.skins import SkinPool
from ps_service.state.structure import tensors_below
from ps_wire.graphs import reached_from
from tests.ps_service.threads import PATIENCE, Worker


class Host(nn.Module):
    """A module of which tests set whatever they like."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.layer = nn.Linear(2, 2)
        self.calls = 0

    def method(self) -> torch.Tensor:
        return self.weight

    def double(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 2


@contextmanager
def dressed(pool: SkinPool, module: nn.Module, training: bool = True) -> Iterator[Any]:
    """A skin of the module."""
    parameters = list(module.parameters())
    leaves = [parameter.data.requires_grad_(parameter.requires_grad) for parameter in parameters]
    skin = pool.lend(training, parameters, leaves)
    try:
        yield skin.module
    finally:
        pool.take_back(training, skin)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def pool(host: Host) -> SkinPool:
    return SkinPool(host)


def test_counters_count(host: Host, pool: SkinPool) -> None:
    for training in (True, False, True):
        with dressed(pool, host, training) as skin:
            skin.calls += 1
    assert host.calls == 3


@pytest.mark.parametrize(
    "value",
    [None, 0, [1, 2], {"a": torch.ones(2)}, torch.ones(2), nn.ReLU().forward, threading.Lock()],
    ids=lambda value: type(value).__name__,
)
def test_what_a_run_sets_is_there_for_every_later_run(host: Host, pool: SkinPool, value: Any) -> None:
    with dressed(pool, host, training=False), dressed(pool, host) as skin:
        skin.__dict__["cache"] = value
    assert host.__dict__["cache"] is value
    for training in (True, False):
        with dressed(pool, host, training) as one, dressed(pool, host, training) as other:
            assert one.cache is other.cache is value


def test_attributes_of_submodules_are_kept_too(host: Host, pool: SkinPool) -> None:
    with dressed(pool, host) as skin:
        skin.layer.note = "seen"
    assert host.layer.note == "seen"


def test_what_a_run_deletes_is_gone(host: Host, pool: SkinPool) -> None:
    with dressed(pool, host) as skin:
        del skin.calls
    assert not hasattr(host, "calls")
    with dressed(pool, host) as skin:
        assert not hasattr(skin, "calls")


def test_what_others_set_on_the_module_is_seen_by_the_next_run(host: Host, pool: SkinPool) -> None:
    with dressed(pool, host) as skin:
        host.calls = 5
        assert skin.calls == 0
    with dressed(pool, host) as skin:
        assert skin.calls == 5
    host.calls = 6
    with dressed(pool, host) as skin:
        assert skin.calls == 6


def test_a_run_that_sets_nothing_does_not_undo_what_another_has_set(host: Host, pool: SkinPool) -> None:
    with dressed(pool, host) as slow:
        with dressed(pool, host) as quick:
            quick.calls += 1
            quick.fresh = "new"
        assert slow.calls == 0
    assert host.calls == 1
    assert host.fresh == "new"


def test_a_run_that_deletes_nothing_does_not_delete_what_another_has_set(host: Host, pool: SkinPool) -> None:
    with dressed(pool, host):
        host.fresh = "new"
    assert host.fresh == "new"


def test_what_changes_while_a_skin_is_made_is_not_taken_for_part_of_the_mode() -> None:
    class Busy(Host):
        def train(self, mode: bool = True) -> Busy:
            busy.calls += 1  # as another run does that ends at this moment
            super().train(mode)
            return self

    busy = Busy()
    pool = SkinPool(busy)
    with dressed(pool, busy):
        pass
    assert busy.calls == 1
    with dressed(pool, busy) as skin:
        assert skin.calls == 1
        skin.calls += 1
    assert busy.calls == 2


@pytest.mark.parametrize("wrap", [lambda y: y, lambda y: [y], lambda y: {"deep": ("er", [y])}], ids=["bare", "1", "3"])
def test_what_has_a_history_is_handed_on_without_it(host: Host, pool: SkinPool, wrap: Any) -> None:
    with dressed(pool, host) as skin:
        computed = skin.weight * 2
        skin.last, skin.again = wrap(computed), wrap(computed)
    assert computed.requires_grad, "what the run itself holds is as it was"
    with dressed(pool, host) as skin:
        found, again = [*_tensors(skin.last)], [*_tensors(skin.again)]
        assert found[0] is again[0], "the same tensor in both places"
        assert found[0].tolist() == [2.0, 2.0]
        assert not found[0].is_leaf
        assert not reached_from(found, type(computed.grad_fn))[1]
        assert reaches_ended([found[0] * skin.weight])
        assert not reaches_ended([found[0].detach() * skin.weight])


def test_what_is_written_to_a_state_is_seen_by_graphs_that_have_saved_it(host: Host, pool: SkinPool) -> None:
    with dressed(pool, host) as skin:
        computed = skin.last = skin.weight.exp()
    with dressed(pool, host) as skin, torch.no_grad():
        skin.last.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        computed.sum().backward()


def test_what_had_a_history_before_the_run_keeps_it(host: Host) -> None:
    host.computed = host.weight * 2
    pool = SkinPool(host)
    parameters = list(host.parameters())
    skin = pool.lend(True, parameters, [parameter.data for parameter in parameters])
    pool.take_back(True, skin, {id(host.computed)})
    assert not reaches_ended([host.computed])


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    assert tensors_below(value, found, 100)
    return found


def test_a_skin_that_waits_holds_nothing_of_its_last_run(host: Host, pool: SkinPool) -> None:
    with dressed(pool, host) as skin:
        result = skin.weight * 2
        skin.last = result
        gone = weakref.ref(result)
    del result
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "look_up",
    [
        lambda skin: skin.frozen,
        lambda skin: [skin.frozen],
        lambda skin: skin.layer,
        lambda skin: ["layer", (skin.layer,)],
        lambda skin: {"itself": skin},
        lambda skin: skin.method,
        lambda skin: {"method": skin.layer.forward},
    ],
    ids=["leaf", "leaves", "submodule", "submodules", "itself", "method", "methods"],
)
def test_what_leads_to_a_skin_belongs_to_its_run_alone(host: Host, pool: SkinPool, look_up: Any) -> None:
    with dressed(pool, host) as skin:
        skin.__dict__["found"] = look_up(skin)
    assert "found" not in host.__dict__
    with dressed(pool, host) as skin:
        assert "found" not in skin.__dict__


def test_what_leads_to_the_module_is_the_skins_own_in_the_skin(host: Host) -> None:
    host.__dict__["direct"] = host.layer
    host.bound = host.method
    pool = SkinPool(host)
    for _ in range(2):
        with dressed(pool, host) as skin:
            assert skin.direct is skin.layer is not host.layer
            assert skin.bound() is skin.weight is not host.weight
            skin.bound = None
    assert host.bound() is host.weight


def test_containers_keep_their_kinds(host: Host) -> None:
    class Ordered(dict[str, Any]):
        """A dict of the user's own."""

    class Listed(list[Any]):
        """A list of the user's own."""

    host.ordered, host.listed, host.plain = Ordered(a=host.layer), Listed([host.layer]), (host.layer, 1)
    with dressed(SkinPool(host), host) as skin:
        assert type(skin.ordered) is Ordered
        assert type(skin.listed) is Listed
        assert type(skin.plain) is tuple
        assert skin.ordered["a"] is skin.listed[0] is skin.plain[0] is skin.layer


def test_containers_that_lead_nowhere_are_shared(host: Host) -> None:
    host.log = ["written to", {"by": "all"}]
    with dressed(SkinPool(host), host) as skin:
        skin.log.append("runs")
    assert host.log == ["written to", {"by": "all"}, "runs"]


def test_hooks_may_come_and_go_during_a_run(host: Host) -> None:
    host.layer.register_forward_hook(host.double)
    with dressed(SkinPool(host), host) as skin:
        once = skin.layer(torch.ones(1, 2))
        handle = skin.layer.register_forward_hook(lambda module, args, output: output + 1)
        assert torch.equal(skin.layer(torch.ones(1, 2)), once + 1)
        handle.remove()
        assert torch.equal(skin.layer(torch.ones(1, 2)), once)


def test_a_run_that_raises_leaves_everything_in_order(host: Host, pool: SkinPool) -> None:
    with pytest.raises(ZeroDivisionError), dressed(pool, host) as skin:
        skin.calls += 1
        raise ZeroDivisionError
    assert host.calls == 1
    with dressed(pool, host) as again:
        assert torch.equal(again.weight, host.weight)


def test_threads_never_share_a_skin(host: Host, pool: SkinPool) -> None:
    threads, rounds = 4, 25
    barrier = threading.Barrier(threads)
    inside: set[int] = set()

    def run() -> None:
        for _ in range(rounds):
            barrier.wait(PATIENCE)
            with dressed(pool, host) as skin:
                assert id(skin) not in inside
                inside.add(id(skin))
                torch.autograd.grad(skin.layer(torch.ones(1, 2)).sum(), skin.layer.weight)
                barrier.wait(PATIENCE)
                inside.remove(id(skin))

    for worker in [Worker(run) for _ in range(threads)]:
        worker.result()
    assert not inside
