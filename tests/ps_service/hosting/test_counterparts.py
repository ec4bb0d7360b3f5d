"""Tests that a copy of a module's structure lists its parameters' places and shares everything else."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from ps_service.hosting.counterparts import Counterparts


class Holder:
    """An ordinary object."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def method(self) -> Any:
        return self.held


class Closing:
    """An object that does something at its end, so that a copy of it would do harm."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __del__(self) -> None:
        self.held = None


class Net(nn.Module):
    """A module with a parameter, two children and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.register_buffer("mean", torch.zeros(2))
        self.shared = ["nothing of the module"]


def filled(made: Counterparts, leaves: dict[int, Any]) -> nn.Module:
    """The copy with something in each place of a parameter."""
    for id_, places in made.places.items():
        for container, key in places:
            container[key] = leaves[id_]
    return made.module


def leaves_for(net: nn.Module) -> dict[int, torch.Tensor]:
    """One leaf for each parameter, by the parameter's id."""
    return {id(each): each.data.clone().requires_grad_() for each in net.parameters()}


def test_modules_are_copied_and_tensors_are_shared() -> None:
    net = Net()
    copy = Counterparts(net).module
    assert isinstance(copy, Net) and copy is not net
    assert copy.layers is not net.layers and copy.layers[0] is not net.layers[0]
    assert type(copy.layers[0]) is nn.Linear
    assert copy.mean is net.mean
    assert copy.shared is net.shared


def test_every_parameter_has_its_places_which_are_empty() -> None:
    net = Net()
    made = Counterparts(net)
    assert made.places.keys() == {id(each) for each in net.parameters()}
    assert all(container[key] is None for places in made.places.values() for container, key in places)
    assert list(made.module.parameters()) == []


def test_a_copy_with_leaves_computes_the_same_as_the_module() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    leaves = leaves_for(net)
    copy, x = filled(Counterparts(net), leaves), torch.tensor([[1.0, -2.0]])
    torch.testing.assert_close(copy(x), net(x))
    copy(x).sum().backward()
    assert all(leaf.grad is not None for leaf in leaves.values())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_parameter_has_a_place_wherever_it_stands() -> None:
    net = Net()
    net.listed, net.held, net.named = [net.weight], Holder(net.weight), {"w": net.weight}
    leaves = leaves_for(net)
    made = Counterparts(net)
    copy: Any = filled(made, leaves)
    leaf = leaves[id(net.weight)]
    assert copy.weight is copy.listed[0] is copy.held.held is copy.named["w"] is leaf
    assert net.listed[0] is net.held.held is net.weight
    assert len(made.containers) == 2, "the list and the dict"


def test_references_between_objects_are_those_of_the_original() -> None:
    net = Net()
    net.layers.owner = Holder([net])
    net.again = net.layers[0]
    net.call = functools.partial(net.layers[0].forward)
    net.read = Holder(net.weight).method
    copy: Any = filled(Counterparts(net), leaves_for(net))
    assert copy.layers.owner.held[0] is copy
    assert copy.again is copy.layers[0]
    assert copy.call.func.__self__ is copy.layers[0]
    assert copy.read() is copy.weight


def test_closures_see_the_copy() -> None:
    net = Net()
    layer = net.layers[0]
    net.closed = lambda x: layer(x)
    copy: Any = filled(Counterparts(net), leaves_for(net))
    assert copy.closed.__closure__[0].cell_contents is copy.layers[0]
    assert net.closed.__closure__ is not None and net.closed.__closure__[0].cell_contents is layer


def test_a_tuple_of_parameters_is_put_together_each_time() -> None:
    net = Net()
    net.both = (net.weight, "text")
    made = Counterparts(net)
    (computed,) = made.computed
    assert (computed.key, computed.original) == ("both", net.both)
    computed.container[computed.key] = "put together"
    assert made.module.both == "put together"
    assert net.both[0] is net.weight


def test_objects_that_must_not_be_copied_are_shared() -> None:
    net = Net()
    net.closing = Closing(net.weight)
    assert Counterparts(net).module.closing is net.closing


def test_attributes_that_are_set_on_the_copy_do_not_reach_the_original() -> None:
    net = Net()
    copy: Any = Counterparts(net).module
    copy.fresh, copy.layers[0].fresh = 1, 2
    assert not hasattr(net, "fresh") and not hasattr(net.layers[0], "fresh")


def test_every_copied_object_is_listed_beside_its_original() -> None:
    net = Net()
    net.held = Holder([net.weight])
    made = Counterparts(net)
    pairs = {id(original): copy for original, copy in zip(made.originals, made.objects, strict=True)}
    assert pairs[id(net)] is made.module
    assert pairs[id(net.held)] is made.module.held
    assert pairs[id(net.held.held)] is made.module.held.held
    assert {id(part.holder) for part in made.parts} == {id(net.held), *map(id, net.modules())}
