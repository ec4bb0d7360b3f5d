"""Passes of a trainer that has set a default device. The device `meta` stands for an accelerator: it has no numbers, so
a tensor that is made there by mistake shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ps_reader
import trainer_client as tc
from tests.conftest import SERVE
from tests.forking.process import Forking
from tests.integration.support import COUNTER
from tests.training import training

IDS = torch.tensor([[5, 7], [7, 9]])


@pytest.fixture(scope="module")
def addresses(forking: Forking) -> Iterator[list[str]]:
    """Two owners in processes of their own, which have no default device."""
    with forking.start(*SERVE, "--name", "ps0") as first, forking.start(*SERVE, "--name", "ps1") as second:
        yield [process.stdout.readline().split()[-1] for process in (first, second)]


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """The default device of this thread alone."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def on_cpu(kind: Any, *args: Any) -> Any:
    return kind(*args, device="cpu")


def batch() -> torch.Tensor:
    return torch.arange(8.0, device="cpu").view(2, 4) / 8


def expected(before: nn.Module, state: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of the local part before the call, of the hosted layer, in local torch."""
    net = on_cpu(nn.Linear, 3, 3)
    net.load_state_dict(state)
    loss = net(torch.tanh(before(batch()))).square().sum()
    return list(torch.autograd.grad(loss, [*before.parameters(), *net.parameters()]))


async def test_the_local_part_before_a_call_trains(addresses: list[str], elsewhere: None) -> None:
    async with tc.connect(*addresses) as ps:
        net = await ps.module(nn.Linear, 3, 3, seed=0, name="of await", owner="ps0")
        before = on_cpu(nn.Linear, 4, 3)
        wanted = expected(before, await net.state_dict())
        # A graph that is no short one runs in a thread.
        for retain in (False, True):
            async with ps.context() as ctx:
                loss = (await net(torch.tanh(before(batch())))).square().sum()
                await ctx.backward(loss, retain_graph=retain)
                found = await ctx.get_gradients()
            of_all = [found[each] for each in (*before.parameters(), *net.parameters())]
            torch.testing.assert_close(of_all, wanted)


def test_the_local_part_before_a_call_trains_with_the_blocking_client(addresses: list[str], elsewhere: None) -> None:
    with tc.connect(*addresses) as ps:
        net = ps.module(nn.Linear, 3, 3, seed=0, name="of threads", owner="ps0")
        before = on_cpu(nn.Linear, 4, 3)
        wanted = expected(before, net.state_dict())
        with ps.context() as ctx:
            loss = net(torch.tanh(before(batch()))).square().sum()
            ctx.backward(loss)
            found = ctx.get_gradients()
        torch.testing.assert_close([found[each] for each in (*before.parameters(), *net.parameters())], wanted)


@pytest.mark.parametrize("owners", [1, 2])
async def test_tables_train(addresses: list[str], elsewhere: None, owners: int) -> None:
    names = ["ps0", "ps1"][:owners]
    async with tc.connect(*addresses) as ps:
        items = await ps.table(f"of {owners}", 2, tc.tables.SGD(lr=0.5), init=tc.tables.Zeros(), owners=names)
        bounds = torch.tensor([0, 1], device="cpu")
        none = torch.empty(0, dtype=torch.int64, device="cpu")
        async with ps.context() as ctx:
            looked_up = [
                *(await items(IDS), await items(none), await items.bag(IDS), await items.bag(IDS[0], bounds)),
                *(await items.bag(IDS, mode="mean"), await items.bag(IDS, mode="max")),
            ]
            assert {each.device.type for each in looked_up} == {"cpu"}
            await ctx.backward(sum(each.sum() for each in looked_up), step=items.optimizer)
        # Rows, sums, both bags of one, means, and of equal numbers the first as the largest.
        expected = torch.tensor([1 + 1 + 1 + 0.5 + 1, 2 + 2 + 1 + 1 + 1, 1 + 1 + 0.5], device="cpu")
        values = await items(torch.tensor([5, 7, 9], device="cpu"))
        torch.testing.assert_close(values.detach()[:, 0], -0.5 * expected)


CODECS = [None, tc.codecs.TopK(0.5), tc.codecs.RandomK(0.5), tc.codecs.Int8(), tc.codecs.Sign(), tc.codecs.Zstd()]


@pytest.mark.parametrize("codec", [*CODECS, tc.codecs.PowerSGD(1)], ids=str)
async def test_encoded_gradients_arrive(addresses: list[str], elsewhere: None, codec: Any) -> None:
    async with tc.connect(*addresses) as ps:
        net = await ps.module(nn.Linear, 4, 4, seed=0, name=f"encoded {codec}", owner="ps0")
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.5)
        # Not a part of a pass: its parameters are made on the default device.
        with torch.device("cpu"):
            replica = await net.replica(compress=codec)
        before = await net.state_dict()
        replica(batch()).sum().backward()
        await replica.push(opt)
        await replica.pull()
        after = await net.state_dict()
        assert not torch.equal(after["weight"], before["weight"])
        assert all(map(torch.equal, replica.parameters(), after.values()))


async def test_results_stay_norms_are_clipped_and_scalers_step(addresses: list[str], elsewhere: None) -> None:
    async with tc.connect(*addresses) as ps:
        first = await ps.module(nn.Linear, 4, 3, seed=0, name="first", owner="ps0")
        second = await ps.module(nn.Linear, 3, 3, seed=0, name="second", owner="ps1")
        third = await ps.module(nn.Linear, 3, 3, seed=0, name="third", owner="ps1")
        parameters = [each for net in (first, second, third) for each in net.parameters()]
        opt = await ps.optimizer(torch.optim.SGD, parameters, lr=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for norm_type in (2.0, torch.inf):
            async with ps.context() as ctx:
                loss = (await third(second(first(batch())))).square().sum()
                await ctx.backward(loss)
                assert float(await ctx.clip_grad_norm(parameters, 1.0, norm_type)) > 0
                assert await opt.step(ctx)
        async with ps.context() as ctx:
            await ctx.backward(scaler.scale((await second(await first(batch()))).square().sum()))
            assert await opt.step(ctx, scaler=scaler)


VALUES = [torch.eye(2).to_sparse(), torch.empty(0, 3), torch.ones(2)]


@pytest.mark.parametrize("value", VALUES, ids=["sparse", "empty", "dense"])
async def test_values_come_back_on_the_cpu(addresses: list[str], elsewhere: None, value: torch.Tensor) -> None:
    async with tc.connect(*addresses) as ps:
        counter = await ps.create(COUNTER, owner="ps0")
        assert (await counter.echo(value)).device.type == "cpu"


async def test_an_owner_in_a_thread_with_a_default_device_trains(elsewhere: None) -> None:
    async with training("ps0") as (_, ps):
        first = await ps.module(nn.Linear, 4, 3, bias=False, seed=0, name="first")
        second = await ps.module(nn.Linear, 3, 3, seed=0, name="second")
        state = await second.state_dict()
        before = on_cpu(nn.Linear, 4, 3, False)
        before.load_state_dict(await first.state_dict())
        wanted = expected(before, state)
        for stays in (False, True) * 2:
            x = batch().requires_grad_()
            async with ps.context() as ctx:
                hidden = first(x)
                loss = (await second(torch.tanh(await hidden))).square().sum()
                if stays:
                    loss = loss + 0 * (await second(hidden)).sum()
                await ctx.backward(loss)
                found = await ctx.get_gradients()
            torch.testing.assert_close([found[each] for net in (first, second) for each in net.parameters()], wanted)
            assert found[x].any()


async def test_tables_of_an_owner_in_such_a_thread_train(elsewhere: None) -> None:
    async with training("ps0", "ps1") as (_, ps):
        for kind in (tc.tables.SGD(lr=0.5), tc.tables.Adagrad(lr=0.5)):
            items = await ps.table(type(kind).__name__, 2, kind, init=tc.tables.Uniform(-0.1, 0.1))
            before = await items(IDS)
            # Later ones run on the event loop, because they have been short.
            for number in range(20):
                async with ps.context() as ctx:
                    rows = [await items(IDS), await items.bag(IDS + number), await items.bag(IDS, mode="max")]
                    await ctx.backward(sum(each.sum() for each in rows), step=items.optimizer)
            assert (await items(IDS) < before).all()


async def test_a_snapshot_is_read_and_exported(addresses: list[str], elsewhere: None, tmp_path: Path) -> None:
    async with tc.connect(*addresses) as ps:
        items = await ps.table("kept", 2, init=tc.tables.Zeros())
        ids = torch.tensor([5, 7], device="cpu")
        await items.upsert(ids, torch.ones(2, 2, device="cpu"))
        kept = await ps.snapshot("kept", [items])
        read = await kept[items].read(torch.tensor([7, 9], device="cpu"))
        assert (read.values.tolist(), read.found.tolist()) == ([[1, 1], [0, 0]], [True, False])
        await ps.export(tmp_path, snapshot="kept")
        with ps_reader.open(tmp_path) as reader:
            assert reader.current.tables["kept"].ids().tolist() == [5, 7]
