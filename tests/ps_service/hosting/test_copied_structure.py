"""Tests that a run finds the changes of the last run to attributes and containers that refer to parts of a module."""

from __future__ import annotations

import functools
import types
from collections import defaultdict, deque
from typing import Any

import pytest
import torch
from torch import nn

from ps_service.hosting.bound_copy_pool import BoundCopies
from tests.ps_service.hosting.host import Host, bound


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def pool(host: Host) -> BoundCopies:
    return BoundCopies(host)


@pytest.mark.parametrize(
    "look_up",
    [
        lambda net: net.frozen,
        lambda net: [net.frozen],
        lambda net: net.layer,
        lambda net: ["layer", (net.layer,)],
        lambda net: {"itself": net},
        lambda net: net.method,
        lambda net: {"method": net.layer.forward},
        lambda net: {net.layer: net.weight},
        lambda net: deque([{net.frozen}]),
        lambda net: functools.partial(net.method),
        lambda net: types.SimpleNamespace(layer=net.layer),
    ],
    ids=["leaf", "leaves", "part", "parts", "itself", "method", "methods", "keyed", "set", "partial", "helper"],
)
def test_references_to_a_copy_become_references_to_the_module(host: Host, pool: BoundCopies, look_up: Any) -> None:
    with bound(pool, host), bound(pool, host) as bound_copy:
        bound_copy.__dict__["found"] = look_up(bound_copy)
    assert _like(host.__dict__["found"], look_up(host))
    for training in (True, False, True):
        with bound(pool, host, training) as bound_copy:
            assert _like(bound_copy.__dict__["found"], look_up(bound_copy))
            assert not _like(bound_copy.__dict__["found"], look_up(host))


def _like(value: Any, other: Any) -> bool:
    """Whether two values are made of the same tensors and modules."""
    if type(value) is not type(other):
        return False
    if isinstance(value, (torch.Tensor, nn.Module)):
        return value is other
    if isinstance(value, (list, tuple, deque, set)):
        return len(value) == len(other) and all(map(_like, value, other))
    if isinstance(value, dict):
        return _like(list(value), list(other)) and _like(list(value.values()), list(other.values()))
    if isinstance(value, types.SimpleNamespace):
        return _like(vars(value), vars(other))
    if isinstance(value, functools.partial):
        return _like(value.func, other.func)
    return bool(value == other)


def test_a_closure_over_a_skin_is_one_over_the_module_afterwards(host: Host, pool: BoundCopies) -> None:
    with bound(pool, host) as bound_copy:

        def look_up(net: Any = bound_copy) -> Any:
            return net.layer

        bound_copy.look_up, bound_copy.of_layer = look_up, (lambda layer: lambda: layer)(bound_copy.layer)
    assert host.look_up() is host.of_layer() is host.layer
    with bound(pool, host) as bound_copy:
        assert bound_copy.look_up() is bound_copy.of_layer() is bound_copy.layer is not host.layer


@pytest.mark.parametrize("kind", [list, deque, set])
def test_values_added_to_a_shared_container_belong_to_the_module(host: Host, kind: Any) -> None:
    host.used = kept = kind()
    pool = BoundCopies(host)
    with bound(pool, host) as bound_copy:
        put = bound_copy.used.add if kind is set else bound_copy.used.append
        put(bound_copy.layer)
        put(bound_copy.weight)
    assert host.used is kept
    assert set(kept) == {host.layer, host.weight}
    with bound(pool, host) as one, bound(pool, host, training=False) as other:
        assert set(one.used) == {one.layer, one.weight}
        assert set(other.used) == {other.layer, other.weight}


def _in_a_default(net: Host) -> Any:
    def run(layer: nn.Module = net.layer, seen: list[int] = []) -> list[int]:  # noqa: B006
        seen.append(1)
        return seen

    return run


def _as_an_attribute(net: Host) -> Any:
    def run() -> int:
        run.calls += 1  # type: ignore[attr-defined]
        return run.calls  # type: ignore[attr-defined]

    run.layer, run.calls = net.layer, 0  # type: ignore[attr-defined]
    return run


def _in_a_closure(net: Host) -> Any:
    seen: list[Any] = [net.weight]

    def run() -> int:
        seen.append(1)
        return len(seen) - 1

    return run


def _in_a_variable(net: Host) -> Any:
    last: Any = net.layer

    def run() -> Any:
        nonlocal last
        last = 1 if isinstance(last, nn.Module) else last + 1
        return last

    return run


def _counting(container: Any, key: Any) -> Any:
    def run() -> int:
        container[key] += 1
        return int(container[key])

    return run


CONTAINERS: dict[str, Any] = {
    "list": lambda net: _counting([net.weight, 0], 1),
    "deque": lambda net: _counting(deque([net.layer, 0]), 1),
    "dict": lambda net: _counting({"layer": net.layer, "calls": 0}, "calls"),
    "defaultdict": lambda net: _counting(defaultdict(int, layer=net.layer), "calls"),
    "list in a tuple": lambda net: _counting((net.weight, [0])[1], 0),
    "default": lambda net: (lambda run: lambda: len(run()))(_in_a_default(net)),
    "attribute": _as_an_attribute,
    "list in a closure": _in_a_closure,
    "variable": _in_a_variable,
}


@pytest.mark.parametrize("way", CONTAINERS)
def test_containers_beside_parameters_are_those_of_the_last_run(host: Host, way: str) -> None:
    host.run = CONTAINERS[way](host)
    pool = BoundCopies(host)
    for run, training in enumerate((True, True, False, True, False), start=1):
        with bound(pool, host, training) as bound_copy:
            assert bound_copy.run() == run


def test_dicts_keyed_by_parameters_and_layers_are_those_of_the_last_run(host: Host) -> None:
    host.counts = {**dict.fromkeys(host.parameters(), 0), host.layer: 0}
    host.seen = {host.weight}
    pool = BoundCopies(host)
    for run, training in enumerate((True, True, False, True), start=1):
        with bound(pool, host, training) as bound_copy:
            assert set(bound_copy.counts.values()) == {run - 1}
            for key in (*bound_copy.parameters(), bound_copy.layer):
                bound_copy.counts[key] += 1
            assert (bound_copy.layer in bound_copy.seen) == (run > 1)
            bound_copy.seen.add(bound_copy.layer)
    assert set(host.counts.values()) == {4}
    assert host.seen == {host.weight, host.layer}


def test_a_container_that_changes_costs_no_new_skin(host: Host) -> None:
    host.counts = {host.weight: 0, "layer": host.layer}
    pool = BoundCopies(host)
    found = set()
    for run in range(3):
        with bound(pool, host) as bound_copy:
            assert bound_copy.counts[bound_copy.weight] == run
            bound_copy.counts[bound_copy.weight] += 1
            found.add(id(bound_copy))
            del bound_copy
    assert len(found) == 1


def test_runs_at_once_add_to_the_same_container(host: Host) -> None:
    host.log = [host.layer]
    host.by_name = {"layer": host.layer}
    pool = BoundCopies(host)
    with bound(pool, host) as one, bound(pool, host) as other:
        for number, each in enumerate((one, other)):
            each.log.append(number)
            each.by_name[str(number)] = each.weight
    assert host.log == [host.layer, 1, 0]
    assert host.by_name == {"layer": host.layer, "0": host.weight, "1": host.weight}


def test_an_attribute_removed_from_the_original_is_gone_in_every_copy(host: Host) -> None:
    handle = host.layer.register_forward_hook(host.double)
    pool = BoundCopies(host)
    with bound(pool, host) as bound_copy:
        twice = bound_copy.layer(torch.ones(1, 2))
    handle.remove()
    with bound(pool, host) as bound_copy:
        assert torch.equal(bound_copy.layer(torch.ones(1, 2)) * 2, twice)


@pytest.mark.parametrize("register", ["register_forward_pre_hook", "register_forward_hook"])
def test_a_hook_that_a_call_registers_at_a_layer_is_one_of_the_module(
    host: Host, pool: BoundCopies, register: str
) -> None:
    with bound(pool, host) as copy:
        getattr(copy.layer, register)(copy.note)
    host.calls = 5
    for _ in range(2):
        with bound(pool, host) as copy:
            copy.layer(torch.ones(1, 2))
    assert host.calls == 7
