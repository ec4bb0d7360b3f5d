"""Hosted modules of every make behave as they do locally, for many trainers at once and in the mode of each caller."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_wire.connections.connection import Connection, Connector
from ps_wire.connections.frames import Packet
from ps_wire.v1.frames_pb2 import DirectOffer, SharedMemoryOffer
from tests import autograd_models
from tests.training import (
    MODELS,
    apart,
    hosted_value,
    owners,
    pins,
    run_before,
    same,
    same_gradients,
    same_state,
    training,
    twin,
)
from trainer_client.transport.faulty import Direction, Fault, FaultyConnector
from trainer_client.transport.in_process import MemoryConnector

SIZE = 4
IDS = torch.tensor([[0, 2, 2], [1, 4, 0]])
ROWS = torch.Generator().manual_seed(0)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=ROWS)


MAKES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], torch.Tensor]] = {
    "tied parameters": ("Tied", (5, SIZE), {}, IDS),
    "computed weights": ("Normed", (SIZE,), {}, rows(3, SIZE)),
    "layers in plain attributes": ("Arranged", (SIZE,), {}, rows(3, SIZE)),
    "hooks": ("Watched", (SIZE,), {}, rows(3, SIZE)),
    "hooks on the way back": ("Steered", (SIZE,), {}, rows(3, SIZE)),
    "a buffer bound anew": ("Averaging", (SIZE,), {}, rows(3, SIZE)),
    "a train() of its own": ("Frozen", (SIZE,), {}, rows(3, SIZE)),
    "parameters in one piece of memory": ("Flat", (SIZE,), {}, rows(3, SIZE)),
    "RNN": ("RNN", (SIZE, SIZE), {"num_layers": 2}, rows(5, 2, SIZE)),
    "LSTM": ("LSTM", (SIZE, SIZE), {"bidirectional": True}, rows(5, 2, SIZE)),
    "GRU": ("GRU", (SIZE, SIZE), {"batch_first": True}, rows(2, 5, SIZE)),
    "transformer": ("TransformerEncoderLayer", (SIZE, 2, 8), {"dropout": 0.0, "batch_first": True}, rows(2, 5, SIZE)),
    "convolution": ("Conv2d", (2, 3, 3), {}, rows(2, 2, 5, 5)),
    "channels last": ("ChannelsLast", (SIZE,), {}, rows(2, SIZE, 6, 6)),
    "embedding that rescales its rows": ("Embedding", (5, SIZE), {"max_norm": 0.5, "padding_idx": 0}, IDS),
    "bags": ("EmbeddingBag", (5, SIZE), {"mode": "sum", "sparse": True}, IDS),
    "batch norm": ("BatchNorm1d", (SIZE,), {}, rows(6, SIZE)),
    "complex numbers": ("Linear", (SIZE, SIZE), {"dtype": torch.complex64}, rows(3, SIZE).to(torch.complex64)),
}


@pytest.mark.parametrize("make", MAKES)
async def test_a_module_computes_trains_and_changes_as_it_does_locally(make: str) -> None:
    cls, args, kwargs, x = MAKES[make]
    hosted = hasattr(autograd_models, cls)
    async with training() as ((server,), ps):
        net = await ps.module(f"{MODELS if hosted else 'torch.nn'}.{cls}", *args, **kwargs)
        local = (await twin(net, getattr(autograd_models if hosted else nn, cls)(*args, **kwargs))).train()
        wants = x.is_floating_point() or x.is_complex()
        for number in range(2):
            ours, theirs = (x.detach().clone().requires_grad_(wants) for _ in range(2))
            local.zero_grad()
            async with ps.context() as ctx:
                # Two calls in one pass, so that gradients add up.
                loss = sum([_loss(await net(ours)), _loss(await net(ours))])
                wanted = sum([_loss(local(theirs)), _loss(local(theirs))])
                same(loss.detach(), wanted.detach(), f"pass {number}")
                await ctx.backward(loss)
                wanted.backward()
                await same_gradients(ctx, [(net, local)], {"input": (ours, theirs)} if wants else {})
            await same_state(net, local)
        net.eval()
        local.eval()
        same(_loss(await net(x)), _loss(local(x)).detach(), "evaluation")
        await same_state(net, local)
        assert (await ps.status()).contexts == 0
        assert pins(server) == 0


async def test_two_passes_at_once_keep_the_layout_of_a_weight() -> None:
    async with training() as ((server,), ps):
        net = await ps.module(f"{MODELS}.ChannelsLast", SIZE)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        local = await twin(net, autograd_models.ChannelsLast(SIZE))
        locally = torch.optim.SGD(local.parameters(), lr=0.1)
        x, forwards = rows(2, SIZE, 6, 6), asyncio.Barrier(2)

        async def step() -> None:
            async with ps.context() as ctx:
                loss = _loss(await net(x))
                await forwards.wait()
                await ctx.backward(loss, step=opt)

        for _ in range(3):
            # Both passes see the parameters before the two steps.
            await asyncio.gather(step(), step())
            locally.zero_grad()
            ((_loss(local(x)) + _loss(local(x))) / 2).backward()
            for _ in range(2):
                locally.step()
            await same_state(net, local)
        await net.load_state_dict(await net.state_dict())
        assert hosted_value(server, net).conv.weight.is_contiguous(memory_format=torch.channels_last)


async def test_calls_do_not_replace_parameters_or_attributes() -> None:
    async with training() as ((server,), ps):
        net = await ps.module(f"{MODELS}.Arranged", SIZE)
        module = hosted_value(server, net)
        before = {name: (id(p), p.data_ptr(), p.grad) for name, p in module.named_parameters()}
        attributes = {name: id(value) for name, value in vars(module).items()}
        async with ps.context() as ctx:
            await ctx.backward((await net.eval()(torch.ones(2, SIZE))).sum())
        assert {name: (id(p), p.data_ptr(), p.grad) for name, p in module.named_parameters()} == before
        assert {name: id(value) for name, value in vars(module).items()} == attributes
        assert module.training


async def test_modes_belong_to_the_handle_and_not_to_the_module() -> None:
    async with owners("ps0") as (server,), tc.connect(server.address) as one, tc.connect(server.address) as other:
        trains = await one.module(f"{MODELS}.Regularized", SIZE, name="net")
        evaluates = (await other.module(f"{MODELS}.Regularized", SIZE, name="net")).eval()
        local = await twin(trains, autograd_models.Regularized(SIZE))
        local.drop.p = 0.0
        x = torch.randn(8, SIZE)
        for _ in range(3):
            both = await asyncio.gather(trains(x), evaluates(x))
            local.train()
            full = local(x)
            # Training drops about half of the numbers and doubles the others.
            dropped = both[0] == 0
            assert 0 < int(dropped.sum()) < dropped.numel()
            same(both[0][~dropped], 2 * full[~dropped].detach(), "training")
        # Evaluation has changed nothing of the running statistics; every training call has.
        await same_state(trains, local)
        same(await evaluates(x), local.eval()(x).detach(), "evaluation")
        await same_state(evaluates, local)
        assert (await trains.state_dict())["norm.num_batches_tracked"] == 3
        assert hosted_value(server, trains).training
        same(await trains.eval()(x), await evaluates(x), "the other one in evaluation mode, too")


async def test_dropout_draws_the_numbers_of_local_torch() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Dropout", 0.5)
        x = torch.ones(64, requires_grad=True)
        torch.manual_seed(3)
        wanted = nn.Dropout(0.5)(x)
        torch.manual_seed(3)
        async with ps.context() as ctx:
            y = await net(x)
            same(y.detach(), wanted.detach(), "output")
            await ctx.backward(y.sum())
            same(ctx.gradient(x), torch.autograd.grad(wanted.sum(), x)[0], "gradient")


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not recorded"])
async def test_forwards_of_one_module_by_several_trainers_run_side_by_side(recorded: bool) -> None:
    meeting = f"forwards {recorded}"
    async with owners("ps0") as (server,), tc.connect(server.address) as one, tc.connect(server.address) as other:
        nets = [await ps.module(f"{MODELS}.Meets", SIZE, meeting, 1, name="net") for ps in (one, other, one)]
        await run_before(one, nets[0], torch.ones(2, SIZE))
        hosted_value(server, nets[0]).meeting = (f"{meeting} of three", 3)
        local = nn.Linear(SIZE, SIZE)
        state = await nets[0].state_dict()
        local.load_state_dict({name.removeprefix("inner."): value for name, value in state.items()})

        async def run(ps: tc.Client, net: tc.RemoteModule, number: float) -> None:
            x = torch.full((2, SIZE), number)
            if not recorded:
                same(await net(x), local(x).detach(), number)
                return
            async with ps.context() as ctx:
                await ctx.backward((await net(x)).sum())
                found = (await ctx.get_gradients())[net.parameter("inner.weight")]
                same(found, torch.full((SIZE, SIZE), 2 * number), number)

        # Each forward waits until all three have begun; alone it gives up with an error.
        runs = zip((one, other, one), nets, (1.0, 2.0, 3.0), strict=True)
        await asyncio.gather(*(run(*each) for each in runs))


async def test_an_attribute_survives_a_longer_call_that_only_read_it() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Waits", 1, 1, "settings")
        autograd_models.event("settings may go on").set()
        await run_before(ps, net, torch.ones(1))
        autograd_models.event("settings may go on").clear()
        autograd_models.event("settings has begun").clear()
        pending = net(torch.ones(1))
        assert await asyncio.to_thread(autograd_models.event("settings has begun").wait, 20)
        await net.set("new")
        assert await net.get() == "new"
        autograd_models.event("settings may go on").set()
        await pending
        assert await net.get() == "new"


class Gated:
    """A connector that opens connections only while its gate is open."""

    def __init__(self, inner: Connector) -> None:
        self._inner = inner
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def address(self) -> str:
        return self._inner.address

    async def connect(self) -> Connection:
        await self.gate.wait()
        return await self._inner.connect()

    async def connect_shared_memory(self, offer: SharedMemoryOffer, max_message_bytes: int) -> Connection | None:
        return await self._inner.connect_shared_memory(offer, max_message_bytes)

    async def connect_direct(self, offer: DirectOffer) -> Connection | None:
        return await self._inner.connect_direct(offer)

    async def close(self) -> None:
        await self._inner.close()


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not recorded"])
async def test_a_result_is_unchanged_when_it_is_sent_again(recorded: bool) -> None:
    async with owners("ps0") as (server,), tc.connect(server.address) as other:
        lost = asyncio.Event()

        def plan(direction: Direction, count: int, packet: Packet) -> Fault:
            # The first answer with the parameter does not arrive, and for a while there is no way to ask again.
            if direction is Direction.TO_OWNER or not packet.frame.reply.HasField("call") or lost.is_set():
                return Fault.NONE
            lost.set()
            gated.gate.clear()
            return Fault.CUT

        gated = Gated(MemoryConnector(server.servicer.serve))
        async with tc.connect(FaultyConnector(gated, plan)) as one:
            net, theirs = [await ps.module("tests.graph_models.Gives", name="net") for ps in (one, other)]
            opt = await other.optimizer(torch.optim.SGD, theirs.parameters(), lr=1.0, reads="inconsistent")
            before = (await theirs.state_dict())["weight"]
            async with one.context() if recorded else contextlib.nullcontext():
                pending = net()
                await lost.wait()
                await apart(_step(other, theirs, opt))
                same((await theirs.state_dict())["weight"], before - 1, "after the step")
                gated.gate.set()
                same((await pending).detach(), before, "from before the step")


async def _step(ps: tc.Client, net: tc.RemoteModule, opt: tc.DistributedOptimizer) -> None:
    async with ps.context() as ctx:
        await ctx.backward((await net()).sum())
        await opt.step(ctx)


def _loss(result: Any) -> torch.Tensor:
    parts = [_loss(part) for part in result] if isinstance(result, tuple) else [result.abs().square().sum()]
    return torch.stack(parts).sum()
