"""Tests what handles tell of themselves, and that they are taken wherever names are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_service.server import Server

COUNTER = "tests.hosted_models.Counter"


async def test_a_handle_tells_its_class_its_name_and_its_owner(ps: tc.Client, ps2: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3, name="net")
    counter, weight = await ps.create(COUNTER), net.parameter("weight")
    assert str(net) == f"torch.nn.Linear 'net' on ps0 ({net.ref})"
    assert str(counter) == f"{COUNTER} on ps0 ({counter.ref})"
    assert str(weight) == f"weight [3, 4] torch.float32 of torch.nn.Linear 'net' on ps0 ({weight.ref})"
    assert repr(weight) == f"<RemoteParameter {weight.ref} [3, 4] torch.float32, of torch.nn.Linear 'net'>"
    for handle in (net, counter):
        assert await ps2.attach(str(handle)) == handle


async def test_a_name_that_looks_like_a_handle_is_that_of_its_own_object(ps: tc.Client) -> None:
    other = await ps.create(COUNTER, name="other")
    odd = await ps.create(COUNTER, name=f"odd ({other.ref})")
    assert await ps.attach(str(odd)) == odd != other


async def test_parameters_tell_their_size_without_a_request(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3)
    weight, bias = net.parameters()
    assert sum(each.numel() for each in net.parameters()) == 15
    assert sum(each.numel() * each.element_size() for each in net.parameters()) == 60
    assert (weight.shape, weight.size(), weight.size(1), weight.dim(), bias.ndim) == ((3, 4), (3, 4), 4, 2, 1)
    assert weight.dtype == torch.float32 and weight.requires_grad
    with pytest.raises(AttributeError, match=r"a handle to a parameter has no 'data'; its value is on the owner, and"):
        weight.data  # noqa: B018


async def test_rows_of_a_table_are_counted_by_the_table(ps: tc.Client) -> None:
    table = await ps.table("users", dim=2, max_rows=4)
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"`await table\.size\(\)` counts those of all owners"):
        table.parameters()[0].numel()


async def test_handles_are_deleted_and_attached_to(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    schedule = await ps.scheduler(lr_scheduler.StepLR, opt, 1)
    table = await ps.table("users", dim=2, max_rows=4)
    assert await ps.attach(net) == net
    for target, name in ((schedule, "net.optimizer.StepLR"), (opt, "net.optimizer"), (net, "net"), (table, "users")):
        await ps.attach(name)
        await ps.delete(target)
        with pytest.raises(tc.errors.UnknownNameError):
            await ps.attach(name)


async def test_parts_on_all_owners_are_deleted(pair: tc.Client) -> None:
    nets = [await pair.module("torch.nn.Linear", 4, 3, owner=owner) for owner in ("ps0", "ps1")]
    opt = await pair.optimizer(optim.SGD, [each for net in nets for each in net.parameters()], name="opt", lr=0.1)
    await pair.delete(opt)
    for owner in ("ps0", "ps1"):
        with pytest.raises(tc.errors.UnknownNameError):
            await pair.attach("opt", owner=owner)


async def test_a_handle_deletes_its_own_object_only(ps: tc.Client, ps2: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3, name="net")
    other = await ps2.module("torch.nn.Linear", 4, 2, name="net", replace=True)
    with pytest.raises(tc.errors.StaleHandleError, match="was replaced"):
        await ps.delete(net)
    assert await ps.attach("net") == other


async def test_what_has_no_name_is_not_deleted(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3)
    mistakes: list[tuple[Any, str]] = [
        (net, "has no name: only what has one moves or is deleted, and other objects go with their last handle"),
        (net.parameter("weight"), "is a parameter, which moves and is deleted with its module"),
        (5, "give the name of an object, or a handle to one, and not 5"),
    ]
    for target, text in mistakes:
        for asked in (lambda target=target: ps.delete(target), lambda target=target: ps.move(target, "ps0")):
            with pytest.raises(tc.errors.InvalidArgumentError, match=text):
                await asked()
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"attach\(\) takes a name or a handle, and not <Distr"):
        await ps.attach(await ps.optimizer(optim.SGD, net.parameters(), lr=0.1))


async def test_a_scheduler_of_torch_is_sent_to_the_client(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    table = await ps.table("users", dim=2, max_rows=4)
    both = await ps.optimizer(optim.SGD, [*net.parameters(), table], lr=0.1)
    for each in (opt, both):
        assert not isinstance(each, optim.Optimizer)
        with pytest.raises(
            TypeError, match=r"ps\.scheduler\(…\) makes a learning-rate scheduler on its owners, is not"
        ):
            lr_scheduler.StepLR(each, 1)
    with pytest.raises(AttributeError, match=r"`ps\.scheduler\(torch\.optim\.lr_scheduler\.StepLR, opt, …\)` makes"):
        lr_scheduler.LambdaLR(opt, lambda epoch: 0.5)


async def test_the_blocking_client_takes_handles_too(owner: Server) -> None:
    def run() -> None:
        with tc.connect(owner.address) as ps:
            net = ps.module("torch.nn.Linear", 4, 3, name="net")
            opt = ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
            assert str(net).startswith("torch.nn.Linear 'net' on ps0 (ps://ps0/")
            assert net.parameters()[0].numel() == 12 and ps.attach(net) == net
            with pytest.raises(TypeError, match=r"^DistributedOptimizer, of which ps\.scheduler\(…\) makes"):
                lr_scheduler.StepLR(opt, 1)
            ps.delete(opt)
            ps.delete(net)
            with pytest.raises(tc.errors.UnknownNameError):
                ps.attach("net")

    await asyncio.to_thread(run)
