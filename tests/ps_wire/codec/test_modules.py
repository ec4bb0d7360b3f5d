"""Tests that modules of registered classes travel by value: their state does, and the receiver makes the structure."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ps_wire.codec.payload import PayloadReader
from ps_wire.codec.records import by_value
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.values_pb2 import Item, Sequence, Value
from tests.ps_wire.codec.test_records import through

WIDTH = 3


class Net(nn.Module):
    """Tied weights, running statistics, a buffer outside the state, and an attribute that cannot be copied."""

    running: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(width, width)
        self.decoder = nn.Linear(width, width)
        self.decoder.weight = self.encoder.weight
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("scale", torch.full((width,), 2.0), persistent=False)
        self.lock = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[N, width]`` to the same shape."""
        result: Tensor = self.norm(self.decoder(self.encoder(x))) * self.scale
        return result


class Plain(nn.Linear):
    """A class whose `make` makes something else."""


by_value(make=lambda: Net(WIDTH))(Net)
by_value(make=lambda: nn.Linear(1, 1))(Plain)


def trained() -> Net:
    """A module after a pass: its statistics have moved, and its parameters have gradients."""
    net = Net(WIDTH)
    net(torch.randn(4, WIDTH)).sum().backward()
    return net


def test_a_module_arrives_with_its_parameters_and_buffers() -> None:
    net = trained()
    found = through({"model": net})["model"]
    assert type(found) is Net and found is not net
    assert list(found.state_dict()) == list(net.state_dict())
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in found.state_dict().items())
    assert torch.equal(found.scale, net.scale)
    x = torch.randn(4, WIDTH)
    assert torch.equal(found.eval()(x), net.eval()(x))


class Stateful(nn.Module):
    """Has an extra state with tensors that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(2)

    def get_extra_state(self) -> dict[str, Tensor]:
        return {"seen": self.seen, "again": self.seen}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self.seen = state["seen"]


by_value(make=Stateful)(Stateful)


def test_a_tensor_of_a_module_stands_for_no_other() -> None:
    """A module is made of it, so that a small message would cost as much memory as it names tensors."""
    net = Stateful()
    net.seen += 3
    encoder = Encoder(None, once=True)
    sent = encoder.encode([net.seen, net, net])
    seen, *found = Decoder(PayloadReader(), once=True).decode(sent)
    assert all(torch.equal(each.seen, net.seen) and each.seen is not seen for each in found)
    plain = encoder.encode(np.zeros(2))
    for record in (sent.list.items[2].record.state.dict.items[0].value.dict.items[0].value.dict.items[0], plain.record):
        (record.value if isinstance(record, Item) else record.state).same_tensor = 0
    for message in (sent, Value(list=Sequence(items=[sent.list.items[0], plain]))):
        with pytest.raises(InvalidArgumentError, match="stands for another; each has to be sent"):
            Decoder(PayloadReader(), once=True).decode(message)


def test_what_arrives_is_trained_apart_from_what_was_sent() -> None:
    net = trained()
    before = net.encoder.weight.detach().clone()
    found = through(net)
    assert all(each.grad is None and each.requires_grad and each.is_leaf for each in found.parameters())
    assert found.decoder.weight is found.encoder.weight
    found(torch.randn(4, WIDTH)).sum().backward()
    torch.optim.SGD(found.parameters(), lr=1.0).step()
    assert torch.equal(net.encoder.weight, before) and not torch.equal(found.encoder.weight, before)


def test_frozen_parameters_and_the_modes_of_submodules_arrive() -> None:
    net = Net(WIDTH)
    net.encoder.weight.requires_grad_(False)
    net.norm.eval()
    found = through(net)
    assert [name for name, each in found.named_parameters() if not each.requires_grad] == ["encoder.weight"]
    assert found.training and found.decoder.training and not found.norm.training
    assert not through(net.eval()).decoder.training


def test_dtypes_arrive_and_no_digit_is_lost() -> None:
    for net in (Net(WIDTH).double(), Net(WIDTH).half(), Net(WIDTH)):
        net.norm.double()
        found = through(net)
        wanted, values = net.state_dict(), found.state_dict()
        assert [values[name].dtype for name in wanted] == [value.dtype for value in wanted.values()]
        assert all(torch.equal(values[name], value) for name, value in wanted.items())


def test_buffers_outside_the_state_arrive() -> None:
    net = Net(WIDTH)
    net.scale = torch.full((2, WIDTH), 5.0, dtype=torch.float64)
    found = through(net)
    assert torch.equal(found.scale, net.scale) and "scale" not in found.state_dict()
    net.scale = None  # type: ignore[assignment]
    assert through(net).scale is None
    net.register_buffer("other", torch.ones(1), persistent=False)
    with pytest.raises(InvalidArgumentError, match="gave no buffer 'other'"):
        through(net)


def test_another_structure_is_refused_also_where_the_state_would_fit() -> None:
    untied = Net(WIDTH)
    untied.decoder.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
    tied = Net(WIDTH)
    tied.norm.bias = tied.norm.weight
    for net in (untied, tied):
        with pytest.raises(InvalidArgumentError, match="tensors that are shared by"):
            through(net)
    other = Net(WIDTH)
    other.norm = nn.InstanceNorm1d(WIDTH, affine=True, track_running_stats=True)  # type: ignore[assignment]
    with pytest.raises(InvalidArgumentError, match=r"gave a BatchNorm1d as 'norm'.*InstanceNorm1d"):
        through(other)
    other = Net(WIDTH)
    other.add_module("last", nn.ReLU())
    with pytest.raises(InvalidArgumentError, match="gave nothing as 'last'"):
        through(other)


class Growing(nn.Module):
    """A module whose layer gets its size in its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(2)


by_value(make=Growing)(Growing)


def test_a_module_arrives_also_where_make_leaves_a_layer_without_a_size() -> None:
    net = Growing()
    net.layer(torch.ones(1, WIDTH))
    assert torch.equal(through(net).layer(torch.ones(1, WIDTH)), net.layer(torch.ones(1, WIDTH)))


def test_a_module_that_arrives_draws_no_random_numbers() -> None:
    net = Net(WIDTH)
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    through(net)
    assert torch.equal(torch.rand(2), expected)


def test_a_state_that_does_not_fit_is_a_typed_error() -> None:
    wide = Net(WIDTH + 1)
    with pytest.raises(InvalidArgumentError, match=r"no .*Net could be made of what arrived.*size mismatch"):
        through(wide)
    with pytest.raises(InvalidArgumentError, match="made a Linear"):
        through(Plain(1, 1))
    for state in ({}, {"state": 1, "frozen": [], "resting": []}, 3):
        message = Value()
        message.record.class_name = f"{__name__}.Net"
        message.record.state.CopyFrom(Encoder(None).encode(state))
        with pytest.raises(InvalidArgumentError, match=r"no .*Net could be made"):
            Decoder(PayloadReader()).decode(message)


def test_only_modules_are_made_so() -> None:
    with pytest.raises(TypeError, match="dict is no module"):
        by_value(make=lambda: nn.Linear(1, 1))(dict)
    with pytest.raises(TypeError, match="give either make, or encode and decode"):
        by_value(make=lambda: nn.Linear(1, 1), encode=str, decode=str)(Net)  # type: ignore[call-overload]
