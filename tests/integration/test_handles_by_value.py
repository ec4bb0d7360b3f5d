"""Tests of handles in instances of classes that are sent by value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service import by_value


@by_value
@dataclass
class Batch:
    net: Any
    x: torch.Tensor


@by_value
class Pair(NamedTuple):
    net: Any
    x: torch.Tensor


class Outer(nn.Module):
    def forward(self, batch: Batch | Pair) -> Any:
        return batch.net, batch.x


@pytest.mark.parametrize("cls", [Batch, Pair])
def test_the_blocking_client_sends_them(cls: Any) -> None:
    x = torch.ones(1, 4)
    with tc.local() as ps:
        net, outer = ps.module(nn.Linear, 4, 2), ps.module(Outer)
        there, same = outer(cls(net, x))
        assert torch.equal(ps.attach(there)(x), net(x)) and torch.equal(same, x)


@pytest.mark.parametrize("cls", [Batch, Pair])
def test_what_is_no_handle_is_refused(cls: Any) -> None:
    with tc.local() as ps:
        net = ps.module(nn.Linear, 4, 2)
        opt = ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        with pytest.raises(tc.errors.InvalidArgumentError, match="cannot be sent"):
            net(cls(opt, torch.ones(1, 4)))


class Caller(nn.Module):
    def forward(self, net: Any, x: torch.Tensor) -> Any:
        return net.rpc_sync().forward(x)


def test_hosted_code_of_a_local_owner_is_told_why_it_calls_no_others() -> None:
    with tc.local() as ps:
        net, caller = ps.module(nn.Linear, 4, 2), ps.module(Caller)
        with pytest.raises(
            tc.errors.RemoteError, match=r"Hosted code of tc\.local\(\) calls no other owners: start the"
        ):
            caller(net, torch.ones(1, 4))
