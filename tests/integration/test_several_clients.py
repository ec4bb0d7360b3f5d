"""Tests of a program with two clients, whose groups have owners of the same names: nothing goes over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import torch
from torch import nn

import trainer_client as tc

Clients = tuple[tc.Client, tc.Client]


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    """The clients of two groups. Each has an owner 'ps0', and the first also 'ps1'."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(tc.local(owners=2)), await stack.enter_async_context(tc.local())


async def test_rows_stay_in_their_group(clients: Clients) -> None:
    ps, other = clients
    items = await other.table("items", dim=2)
    refused = pytest.raises(tc.errors.InvalidArgumentError, match=r"'items'.*made by another client.*or give its name")
    with refused:
        await ps.rebalance([items])
    with refused:
        await ps.drain("ps0", to="ps1", tables=[items])
    assert (await items(torch.tensor([1, 2, 3]))).shape == (3, 2) and items.owners == ["ps0"]
    with pytest.raises(tc.errors.UnknownNameError):
        await ps.attach("items")


async def test_objects_stay_in_their_group(clients: Clients) -> None:
    ps, other = clients
    net = await other.module(nn.Linear, 2, 1, name="net")
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"'net'.*made by another client"):
        await ps.move(net, to="ps1")


async def test_an_optimizer_is_over_parameters_of_one_client(clients: Clients) -> None:
    nets = [await ps.module(nn.Linear, 2, 1, name="net") for ps in clients]
    parameters = [each for net in nets for each in net.parameters()]
    with pytest.raises(tc.errors.InvalidArgumentError, match="different clients; connect to all of their owners with"):
        await clients[0].optimizer(torch.optim.SGD, parameters, lr=0.1)
    with pytest.raises(tc.errors.UnknownNameError):
        await clients[0].attach("net.optimizer")


@pytest.mark.parametrize("given", [3, [b"items"], [nn.Linear]])
async def test_what_is_no_table_is_named(clients: Clients, given: object) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match="what is moved between owners are tables, or their names"):
        await clients[0].rebalance(given)  # type: ignore[arg-type]
