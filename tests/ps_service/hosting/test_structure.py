"""Tests which objects count as referring to parameters, and which are never followed."""

from __future__ import annotations

import functools
import logging
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

from ps_service.hosting import structure
from ps_service.hosting.internals import Internals
from ps_service.hosting.structure import (
    all_below,
    attributes_of,
    below,
    contents,
    is_atom,
    is_instance,
    leads_to,
    set_attribute,
    target_of,
    tensors_below,
)


class Holder:
    """An ordinary object."""

    def __init__(self, held: Any = None) -> None:
        self.held = held

    def method(self) -> Any:
        return self.held


class Slotted:
    """An object with slots."""

    __slots__ = ("held", "other")

    def __init__(self, held: Any) -> None:
        self.held = held


class Both(Slotted):
    """An object with slots and a dict."""

    def __init__(self, held: Any, more: Any) -> None:
        super().__init__(held)
        self.more = more


class Pair(tuple):
    """A tuple of a class of its own."""


ALIVE: list[Holder] = []
"""Objects to which only weak references lead."""


def weakly(make: Callable[[Holder], Any]) -> Callable[[Any], Any]:
    """A way over a weak reference, which is made of an object that nothing else leads to."""

    def way(held: Any) -> Any:
        ALIVE.append(Holder(held))
        return make(ALIVE[-1])

    return way


def closure(held: Any) -> Callable[[], Any]:
    return lambda: held


def default(held: Any) -> Callable[..., Any]:
    def function(value: Any = held) -> Any:
        return value

    return function


def keyword(held: Any) -> Callable[..., Any]:
    def function(*, value: Any = held) -> Any:
        return value

    return function


def attribute(held: Any) -> Callable[[], Any]:
    def function() -> None:
        pass

    function.held = held  # type: ignore[attr-defined]
    return function


def cycle(held: Any) -> list[Any]:
    made: list[Any] = [held]
    made.append(made)
    return made


WAYS: dict[str, Callable[[Any], Any]] = {
    "list": lambda held: [0, held],
    "tuple": lambda held: (0, held),
    "set": lambda held: {held},
    "frozenset": lambda held: frozenset({held}),
    "deque": lambda held: deque([held]),
    "dict": lambda held: {"key": held},
    "key": lambda held: {held: 1},
    "ordered dict": lambda held: OrderedDict(key=held),
    "tuple of a class": lambda held: Pair((held,)),
    "instance": Holder,
    "slots": Slotted,
    "namespace": lambda held: types.SimpleNamespace(held=held),
    "bound method": lambda held: Holder(held).method,
    "method of a list": lambda held: [held].append,
    "partial": lambda held: functools.partial(print, held),
    "keyword of a partial": lambda held: functools.partial(print, end=held),
    "closure": closure,
    "default": default,
    "keyword default": keyword,
    "attribute of a function": attribute,
    "cycle": cycle,
    "weak reference": weakly(weakref.ref),
    "weak proxy": weakly(weakref.proxy),
    "weak method": weakly(lambda one: weakref.WeakMethod(one.method)),
    "far away": lambda held: [{"a": (Holder(closure(Slotted([held]))),)}],
}


class Net(nn.Module):
    """A module with a parameter, a child and an attribute."""

    def __init__(self, attribute: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.child = nn.Linear(1, 1)
        self.attribute = attribute


def parts(net: nn.Module) -> set[int]:
    """`id()` of its parameters and submodules."""
    return {*map(id, net.parameters()), *map(id, net.modules())}


# What leads to a parameter


def test_references_to_a_parameter_are_found() -> None:
    for name, way in WAYS.items():
        net = Net()
        net.attribute = way(net.weight)
        other = way(nn.Parameter(torch.ones(2)))
        assert leads_to(net.attribute, parts(net)), name
        assert not leads_to(other, parts(net)), name


def test_other_references_are_not_found() -> None:
    for name, way in WAYS.items():
        net = Net(way(torch.ones(2)))
        assert not leads_to(net.attribute, parts(net)), name


def test_parameters_and_submodules_lead_to_themselves() -> None:
    net = Net()
    assert all(leads_to(each, parts(net)) for each in (net, net.child, net.weight, net.child.bias))


def test_references_to_a_submodule_are_found() -> None:
    net = Net()
    net.attribute = [functools.partial(net.child)]
    assert leads_to(net.attribute, parts(net))


def test_the_module_itself_behind_its_attributes_is_found() -> None:
    net = Net()
    net.attribute = Holder(net)
    assert leads_to(net.attribute, parts(net))


@pytest.mark.parametrize(
    "make",
    [
        lambda net: optim.SGD(net.parameters(), lr=0.1),
        lambda net: logging.LoggerAdapter(logging.getLogger("x"), {"net": net.weight}),
        lambda net: (each for each in [net.weight]),
        lambda net: type("Made", (), {"weight": net.weight}),
        lambda net: threading.Thread(target=print, args=(net.weight,)),
    ],
    ids=["optimizer", "logger", "generator", "class", "thread"],
)
def test_objects_of_the_process_are_not_followed(make: Callable[[Net], Any]) -> None:
    net = Net()
    net.attribute = make(net)
    assert not leads_to(net.attribute, parts(net))


# Looking below


def test_below_are_the_direct_contents() -> None:
    inner = [1]
    assert list(below([inner, 2])) == [inner, 2]
    assert list(below({"key": inner, 3: 4})) == [3, inner, 4]
    assert list(below(torch.ones(1))) == list(below("text")) == list(below(int)) == []


def test_all_below_looks_at_each_object_once_and_at_no_more_than_told() -> None:
    inner = Holder()
    value = [inner, [inner], (inner, 5)]
    assert sum(1 for each in all_below(value, 100) if each is inner) == 1
    many = [[number] for number in range(100)]
    assert len(list(all_below(many, 10))) <= 10


def test_all_below_may_end_at_modules_and_at_objects() -> None:
    net, inner = Net(Holder("inside")), Holder("outside")
    value = [net, [inner]]
    inside = id(net.attribute)
    assert inside in map(id, all_below(value, 1000))
    assert inside not in map(id, all_below(value, 1000, into_modules=False))
    assert id(inner) not in map(id, all_below(value, 1000, ends={id(value[1])}))


def test_tensors_are_collected_but_not_those_of_modules() -> None:
    one, two = torch.ones(1), torch.ones(1)
    found: list[torch.Tensor] = []
    assert tensors_below({"a": [one], "b": Holder((two, one)), "net": Net()}, found, 1000)
    assert set(map(id, found)) == {id(one), id(two)}


def test_tensors_below_returns_false_at_its_limit() -> None:
    found: list[torch.Tensor] = []
    assert not tensors_below([torch.ones(1) for _ in range(20)], found, 10)
    assert len(found) < 20


# Kinds of values


def test_atoms_lead_nowhere() -> None:
    assert all(map(is_atom, (1, 1.0, 1j, True, "a", b"a", None, int, range(2), torch.float32, torch.Size([1]), types)))
    assert not any(map(is_atom, ([], (), {}, torch.ones(1), Holder(), lambda: 1)))


def test_instances_are_those_of_ordinary_classes() -> None:
    for value in (Holder(), Slotted(1), Both(1, 2), types.SimpleNamespace(), Net(), Pair()):
        assert is_instance(value)
    for value in (1, [1], {}, torch.ones(1), Holder, weakref.ref(Holder), threading.Event(), logging.getLogger("x")):
        assert not is_instance(value)


def test_attributes_are_those_of_the_dict_and_of_the_slots() -> None:
    assert attributes_of(Holder(3)) == [("held", 3)]
    assert attributes_of(Both(1, 2)) == [("more", 2), ("held", 1)]
    assert attributes_of(object()) == []


def test_an_attribute_is_set_where_it_stands() -> None:
    holder, both = Slotted(1), Both(1, 2)
    set_attribute(holder, "held", 2)
    set_attribute(both, "more", 3)
    set_attribute(both, "held", 4)
    assert (attributes_of(holder), attributes_of(both)) == ([("held", 2)], [("more", 3), ("held", 4)])


def test_a_weak_reference_leads_to_its_target_while_that_is_there() -> None:
    holder = Holder()
    kinds = [weakref.ref(holder), weakref.proxy(holder), weakref.WeakMethod(holder.method)]
    assert all(target_of(each) is holder for each in kinds)
    del holder
    assert [target_of(each) for each in kinds] == [None, None, None]


def test_a_cell_without_a_value_is_empty() -> None:
    assert contents(types.CellType(3)) == [3]
    assert contents(types.CellType()) == []


def test_a_search_looks_at_no_more_of_a_large_container_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(frozenset[type]):
        looked = 0

        def __contains__(self, kind: object) -> bool:
            Counting.looked += 1
            return super().__contains__(kind)

    monkeypatch.setattr(structure, "_ATOMS", Counting(structure._ATOMS))
    value = [Holder() for _ in range(10_000)]
    assert not tensors_below(value, [], most=10)
    assert Counting.looked < 100


def test_a_module_may_keep_a_function_that_belongs_to_no_module() -> None:
    layer = nn.Linear(2, 2)
    layer.act = types.FunctionType(compile("0", "nowhere", "eval"), {})
    assert layer.act.__module__ is None
    assert Internals(layer).found().tensors == []
