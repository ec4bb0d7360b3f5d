"""Tests that errors of tables name what is wrong, and what to do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import trainer_client as tc
from trainer_client.nn import EmbeddingBag

IDS = torch.tensor([5, -9, 7])


async def test_a_gradient_that_is_refused_names_the_table(ps: tc.Client) -> None:
    items, net = await ps.table("items", 2), await ps.module(nn.Linear, 2, 1, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, non_finite="refuse")
    async with ps.context() as ctx:
        await ctx.backward((await net(await items(IDS))).sum() * math.nan)
        with pytest.raises(
            tc.errors.NonFiniteGradientError, match="the gradient of table 'items' on owner 'ps0' holds NaN"
        ):
            await items.step(ctx)
        with pytest.raises(tc.errors.NonFiniteGradientError, match="the gradient of 'weight' on owner 'ps0'"):
            await opt.step(ctx)


async def test_a_full_table_names_what_keeps_its_rows_from_making_room(ps: tc.Client) -> None:
    for name, evict, advice in (
        ("plain", None, r"evict=tc\.tables\.Eviction\(at_capacity="),
        ("ttl", tc.tables.Eviction(ttl=100.0), r"evict=tc\.tables\.Eviction\(at_capacity="),
        (
            "spared",
            tc.tables.Eviction(at_capacity="least_recent", spare=30.0),
            "smaller spare= .* last 30 seconds make no",
        ),
    ):
        items = await ps.table(name, 2, max_rows=2, evict=evict)
        async with ps.context():
            with pytest.raises(tc.errors.TooLargeError, match=advice):
                await items(IDS)


async def test_what_cannot_expire_names_what_is_missing(ps: tc.Client) -> None:
    plain = await ps.table("plain", 2)
    for share in (None, 0.5):
        with pytest.raises(
            tc.errors.InvalidArgumentError, match=r"are evicted: make it with evict=tc\.tables\.Eviction"
        ):
            await plain.evict(share)
    items = await ps.table("items", 2, evict=tc.tables.Eviction(at_capacity="least_recent"))
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"has no ttl=: .* evict\(0\.1\), or make it with .*ttl="):
        await items.evict()
    assert (await items.evict(0.5)).rows == 0


async def test_a_backward_in_another_pass_than_that_of_a_prefetched_look_up(ps: tc.Client) -> None:
    items = await ps.table("items", 2)
    batches = ps.prefetch([IDS], items, depth=0)
    async for _, looked_up in batches:
        async with ps.context() as ctx:
            with pytest.raises(RuntimeError, match=r"another pass than.*async with looked_up\.context as ctx"):
                await ctx.backward((await looked_up).sum())


async def test_arguments_of_bags_that_there_are_not(ps: tc.Client) -> None:
    items = await ps.table("items", 2)
    with pytest.raises(
        tc.errors.InvalidArgumentError, match=r"bag\(\) of table 'items' has no argument 'offset'.*'offsets'"
    ):
        await ps.look_up({items: {"ids": IDS, "offset": torch.tensor([0])}})
    with pytest.raises(tc.errors.InvalidArgumentError, match="has no argument 'table'"):
        await ps.look_up({items: {"ids": IDS, "table": items}})


async def test_a_layer_over_a_table_as_an_argument_says_how_hosted_code_looks_up(ps: tc.Client) -> None:
    items, net = await ps.table("items", 2), await ps.module(nn.Linear, 2, 1, name="net")
    with pytest.raises(
        tc.errors.InvalidArgumentError,
        match=r"EmbeddingBag cannot be sent: a table can be an argument of calls and constructors, "
        r"ps\.module\(Net, items\), whose code looks up in it\. A layer over it cannot: give the table itself, or run "
        r"the module here, as a replica that gets the layer",
    ):
        await net(EmbeddingBag(items))
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"Linear takes tensors, .*, not a TableRef"):
        await net(items)


def test_modules_of_torchs_names_come_with_the_package_and_methods_of_clients_are_named() -> None:
    assert tc.nn.EmbeddingBag is EmbeddingBag
    assert [tc.optim.__name__, tc.autograd.__name__] == ["trainer_client.optim", "trainer_client.autograd"]
    with pytest.raises(AttributeError, match=r"method of the client .*ps\.prefetch\(…\)"):
        tc.prefetch  # noqa: B018  # looking it up is what is tested
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tc.nothing  # noqa: B018  # as above
