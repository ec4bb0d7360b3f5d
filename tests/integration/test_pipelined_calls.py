"""Tests that results which have not come yet can be arguments of later calls, with values and gradients as locally."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service.server import Server
from ps_wire.connections.frames import Packet
from ps_wire.errors import InvalidArgumentError
from tests.conftest import OwnerProcess
from tests.graph_models import DTYPE, SIZE, Mix, Several
from tests.integration.support import COUNTER, until
from tests.socket_writes import noted_writes
from tests.training import owners, same, same_gradients, training, twin
from trainer_client.transport.faulty import Direction, Fault, FaultyConnector
from trainer_client.transport.grpc_stream import GrpcConnector

MODELS = "tests.graph_models"
Pair = tuple[tc.RemoteModule, nn.Module]


async def linear(ps: tc.Client, owner: str = "ps0", inputs: int = SIZE) -> Pair:
    handle = await ps.module("torch.nn.Linear", inputs, SIZE, dtype=DTYPE, owner=owner)
    return handle, await twin(handle, nn.Linear(inputs, SIZE, dtype=DTYPE))


async def mix(ps: tc.Client) -> Pair:
    handle = await ps.module(f"{MODELS}.Mix")
    return handle, await twin(handle, Mix())


def x(*, grad: bool = False) -> torch.Tensor:
    return torch.randn(3, SIZE, dtype=DTYPE, requires_grad=grad)


async def all_gone(ps: tc.Client, *servers: Server) -> None:
    """Waits until no owner has an anonymous object that is no module."""
    there = [each.engine.registry for each in servers]
    await until(ps, lambda _: all(each.is_module for registry in there for each in registry.objects()))


async def test_a_chain_is_what_it_is_locally() -> None:
    async with training() as ((server,), ps):
        pairs = [await linear(ps) for _ in range(3)]
        (a, la), (b, lb), (c, lc) = pairs
        leaf = x(grad=True)
        twin_leaf = leaf.detach().clone().requires_grad_()
        async with ps.context() as ctx:
            out = await c(b(a(leaf)))
            wanted = lc(lb(la(twin_leaf)))
            same(out, wanted, "result")
            await ctx.backward(out.square().sum())
            wanted.square().sum().backward()
            await same_gradients(ctx, pairs, {"leaf": (leaf, twin_leaf)})
        await all_gone(ps, server)


async def test_a_diamond_adds_the_gradients_of_all_uses() -> None:
    async with training() as (_, ps):
        pairs = [await linear(ps), await linear(ps), await mix(ps)]
        (a, la), (b, lb), (m, lm) = pairs
        value, ids = x(), torch.arange(3)
        async with ps.context() as ctx:
            shared = a(value)
            out = await m({"first": shared, "rest": [b(shared), ids]}, gate=shared)
            there = la(value)
            wanted = lm({"first": there, "rest": [lb(there), ids]}, gate=there)
            same(out, wanted, "result")
            await ctx.backward(out.sum())
            wanted.sum().backward()
            await same_gradients(ctx, pairs)


async def test_a_module_may_be_used_several_times_in_a_chain() -> None:
    async with training() as (_, ps):
        pair = await linear(ps)
        remote, local = pair
        value = x()
        async with ps.context() as ctx:
            out = await remote(remote(remote(value)))
            wanted = local(local(local(value)))
            await ctx.backward(out.sum())
            wanted.sum().backward()
            same(out, wanted, "result")
            await same_gradients(ctx, [pair])


@pytest.mark.parametrize("before", [False, True])
async def test_a_result_may_be_awaited_and_be_an_argument(before: bool) -> None:
    async with training() as ((server,), ps):
        pairs = [await linear(ps), await linear(ps)]
        (a, la), (b, lb) = pairs
        value = x()
        async with ps.context() as ctx:
            first = a(value)
            if before:
                inner = await first
                outer = await b(first)
            else:
                second = b(first)
                inner, outer = await asyncio.gather(first, second)
            there = la(value)
            same(inner, there, "inner")
            same(outer, lb(there), "outer")
            await ctx.backward((inner.sin() * outer).sum())
            (there.sin() * lb(there)).sum().backward()
            await same_gradients(ctx, pairs)
            again = await b(first)
            same(again, lb(there), "later")
        del first
        await all_gone(ps, server)


async def test_a_result_is_fetched_after_the_pass_without_a_history() -> None:
    async with training() as (_, ps):
        (a, la), (b, _) = [await linear(ps), await linear(ps)]
        value = x()
        async with ps.context():
            inner = a(value)
            await b(inner)
        found = await inner
        same(found, la(value).detach(), "inner")
        assert not found.requires_grad


async def test_several_backwards_and_kept_graphs() -> None:
    async with training() as (_, ps):
        pairs = [await linear(ps), await linear(ps), await linear(ps)]
        (a, la), (b, lb), (c, lc) = pairs
        value = x()
        async with ps.context() as ctx:
            shared = a(value)
            one, two = await asyncio.gather(b(shared), c(shared))
            there = la(value)
            wanted_one, wanted_two = lb(there), lc(there)
            await ctx.backward(one.sum(), retain_graph=True)
            await ctx.backward(two.square().sum())
            wanted_one.sum().backward(retain_graph=True)
            wanted_two.square().sum().backward()
            await same_gradients(ctx, pairs)
            with pytest.raises(RuntimeError, match="second time"):
                await ctx.backward(one.sum())


async def test_calls_without_grad_are_constants() -> None:
    async with training() as (_, ps):
        pairs = [await linear(ps), await linear(ps)]
        (a, la), (b, lb) = pairs
        value = x()
        async with ps.context() as ctx:
            with torch.no_grad():
                inner = a(value)
            out = await b(inner)
            with torch.no_grad():
                wanted_inner = la(value)
            await ctx.backward(out.sum())
            lb(wanted_inner).sum().backward()
            await same_gradients(ctx, pairs)
            with torch.no_grad():
                assert not (await b(a(value))).requires_grad


async def test_inner_results_of_every_kind(ps: tc.Client) -> None:
    counter = await ps.create(COUNTER)
    values: list[Any] = [
        *(None, True, 7, 1 << 80, 2.5, "text", b"bytes", (), [], {}, torch.float16, slice(1, None, 2)),
        (1, [torch.arange(3), {"key": (torch.ones(2), None)}]),
        torch.eye(3).to_sparse(),
        torch.arange(6).view(2, 3).t(),
    ]
    for value in values:
        direct = await counter.echo(await counter.echo(value))
        found, nested = await asyncio.gather(
            counter.echo(counter.echo(value)), counter.echo([{"a": counter.echo(value)}])
        )
        assert str(found) == str(direct) and str(nested) == str([{"a": direct}])
        assert type(found) is type(direct)


async def test_numbers_and_containers_of_tensors_in_a_pass() -> None:
    async with training() as (_, ps):
        several = await ps.module(f"{MODELS}.Several")
        local = await twin(several, Several())
        counter = await ps.create(COUNTER)
        value = x()
        async with ps.context() as ctx:
            both = several.both(value, scale=counter.echo(1.5))
            echoed = await counter.echo(both)
            wanted = local.both(value, scale=1.5)
            for found, tensor in zip(echoed["y"], wanted["y"], strict=True):
                same(found, tensor, "output")
            assert torch.equal(echoed["argmax"], wanted["argmax"]) and echoed["shape"] == wanted["shape"]
            await ctx.backward(sum(each.sum() for each in echoed["y"]))
            sum(each.sum() for each in wanted["y"]).backward()
            await same_gradients(ctx, [(several, local)])


async def test_each_call_gets_a_value_of_its_own() -> None:
    async with training() as (_, ps):
        spoils = await ps.module(f"{MODELS}.Spoils")
        identity, _ = await linear(ps)
        counter = await ps.create(COUNTER)
        value = x()
        made = identity(value)
        spoilt, whole = await asyncio.gather(spoils(made), counter.echo(made))
        assert not torch.equal(spoilt, whole)
        same(await made, whole, "the result is as it was")


async def test_only_what_is_awaited_is_sent_back() -> None:
    sent: list[int] = []

    def plan(direction: Direction, number: int, packet: Packet) -> Fault:
        if direction is Direction.TO_TRAINER and packet.frame.HasField("reply"):
            sent.append(packet.frame.payload_bytes)
        return Fault.NONE

    async with (
        owners("ps0") as (server,),
        tc.connect(FaultyConnector(GrpcConnector(server.address), plan), shared_memory=False) as ps,
    ):
        users = await ps.module("torch.nn.Embedding", 50, 8)
        items = await ps.module("torch.nn.Embedding", 40, 8)
        head = await ps.module("torch.nn.Bilinear", 8, 8, 1)
        sent.clear()
        async with ps.context():
            score = await head(users(torch.arange(16)), items(torch.arange(16)))
        assert score.shape == (16, 1) and sent == [0, 0, 64]


async def test_a_forward_is_one_write(owner_process: OwnerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    async with tc.connect(owner_process.address) as ps:
        users = await ps.module("torch.nn.Embedding", 50, 8)
        items = await ps.module("torch.nn.Embedding", 40, 8)
        head = await ps.module("torch.nn.Bilinear", 8, 8, 1)
        rows = torch.arange(16)
        for _ in range(3):
            async with ps.context() as ctx:
                scoring = head(users(rows), items(rows))
                with monkeypatch.context() as patch:
                    written = noted_writes(patch)
                    # As when a task begins to await it.
                    ps.session("ps0").requests.flush()
                    assert len(written) == 1
                await ctx.backward((await scoring).sum())


async def test_calls_that_tasks_await_in_one_turn_take_two_writes(
    owner_process: OwnerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tc.connect(owner_process.address) as ps:
        counter = await ps.create(COUNTER)

        async def add() -> int:
            return int(await counter.add(1))

        with monkeypatch.context() as patch:
            written = noted_writes(patch)
            assert sorted(await asyncio.gather(*(add() for _ in range(8)))) == list(range(1, 9))
            # The first goes at once, so that the owner can begin; the others go together at the end of the turn.
            assert len(written) == 2
            assert written[1] > 4 * written[0]


async def test_a_result_of_another_owner_goes_through_the_trainer() -> None:
    async with training("ps0", "ps1") as (servers, ps):
        pairs = [await linear(ps, "ps0"), await linear(ps, "ps1"), await linear(ps, "ps0"), await linear(ps, "ps1")]
        (a, la), (b, lb), (c, lc), (d, ld) = pairs
        m = await ps.module(f"{MODELS}.Mix", owner="ps1")
        lm = await twin(m, Mix())
        value, ids = x(), torch.arange(3)
        async with ps.context() as ctx:
            out = await m({"first": d(c(b(a(value)))), "rest": [b(value), ids]}, gate=a(value))
            wanted = lm({"first": ld(lc(lb(la(value)))), "rest": [lb(value), ids]}, gate=la(value))
            same(out, wanted, "result")
            await ctx.backward(out.sum())
            wanted.sum().backward()
            await same_gradients(ctx, [*pairs, (m, lm)])
        await all_gone(ps, *servers)


async def test_handles_among_results(ps: tc.Client) -> None:
    counter = await ps.create(COUNTER)
    other = await ps.create(COUNTER, 5)
    with pytest.raises(InvalidArgumentError, match="await the result"):
        await counter.look_at(counter.pass_on(other))
    assert await counter.look_at(await counter.pass_on(other)) == 5
    # A call that leaves its result on the owner is awaited by the trainer, because its result is a handle.
    kept = counter.remote("echo", torch.ones(2))
    assert torch.equal(await counter.look_at(kept), torch.ones(2))


async def test_arguments_from_other_threads(ps: tc.Client) -> None:
    counter = await ps.create(COUNTER)

    def work() -> Any:
        return counter.echo(counter.echo(3), [counter.echo(4)]).wait()

    assert await asyncio.to_thread(work) == (3, [4])
    inner = counter.echo(5)
    outer = counter.echo(inner)
    assert await asyncio.to_thread(outer.wait) == await asyncio.to_thread(inner.wait) == 5


async def test_long_chains(ps: tc.Client) -> None:
    counter = await ps.create(COUNTER)
    value: Any = counter.echo(0)
    for _ in range(1200):  # more than Python would recurse
        value = counter.echo(value)
    assert await value == 0


async def test_calls_are_sent_in_the_order_in_which_they_were_made(ps: tc.Client) -> None:
    counter = await ps.create(COUNTER)
    first, second = counter.add(1), counter.add(10)
    assert (await second, await first) == (11, 1)
    alone = counter.add(100)
    await asyncio.sleep(0)
    assert not alone.settled or await alone == 111
    assert await alone == 111
