"""An owner that is killed has everything that it has acknowledged when it starts again."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_service import hosted, remote
from tests.conftest import StartProcess
from tests.integration.restarting import Owner
from tests.integration.support import bits

X = torch.ones(2, 4)
MODES = ["interval:0.01", "always"]
# For tests in which it matters when the owner answers. What is in its log is the same.
in_both_modes = pytest.mark.parametrize("owner", MODES, indirect=True)


def mode(request: pytest.FixtureRequest) -> str:
    """The durability of the fixture `owner`."""
    return str(getattr(request, "param", MODES[-1]))


@pytest.fixture
async def owner(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, modules=[sys.modules[__name__]], durability=mode(request)) as made:
        yield made


def batch(i: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(i))


async def one_pass(ps: tc.Client, net: tc.RemoteModule, opt: tc.DistributedOptimizer, i: int) -> None:
    async with ps.context() as ctx:
        loss = (await net(batch(i))).square().sum()
        if i % 2:
            await ctx.backward(loss, step=opt)
        else:
            await ctx.backward(loss)
            await opt.step(ctx)


def local_pass(net: nn.Module, opt: optim.Optimizer, i: int) -> None:
    net(batch(i)).square().sum().backward()
    opt.step()
    opt.zero_grad()


OPTIMIZERS: list[Any] = [
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (optim.Adam, {"lr": 0.1}),
    (optim.AdamW, {"lr": 0.1, "amsgrad": True}),
    (optim.Adagrad, {"lr": 0.1, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(
    ("owner", "cls", "options"),
    [("interval:0.01", *OPTIMIZERS[0]), *(("always", *each) for each in OPTIMIZERS[1:])],
    indirect=["owner"],
)
async def test_no_acknowledged_step_is_lost_or_made_twice(
    owner: Owner, ps: tc.Client, cls: Any, options: dict[str, Any]
) -> None:
    net = await ps.module(nn.Linear, 4, 2, seed=1)
    opt = await ps.optimizer(cls, net.parameters(), **options)
    schedule = await ps.scheduler(lr_scheduler.ExponentialLR, opt, 0.9)
    torch.manual_seed(1)
    local = nn.Linear(4, 2)
    local_opt = cls(local.parameters(), **options)
    local_schedule = lr_scheduler.ExponentialLR(local_opt, 0.9)
    for i in range(8):
        await one_pass(ps, net, opt, i)
        local_pass(local, local_opt, i)
        if i % 3 == 0:
            await schedule.step()
            local_schedule.step()
        if i % 4 == 2:
            await owner.crash()
    assert bits(await net.state_dict()) == bits(dict(local.state_dict()))
    assert bits(await opt.state_dict()) == bits(local_opt.state_dict())


@in_both_modes
async def test_a_pass_that_was_open_is_lost_and_run_repeats_it(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 4, 2, seed=1)
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    attempts = 0

    async def step(ctx: tc.Context) -> None:
        nonlocal attempts
        attempts += 1
        loss = (await net(X)).square().sum()
        if attempts == 1:
            await owner.crash()
        await ctx.backward(loss, step=opt)

    await ps.run(step)
    assert attempts == 2
    async with ps.context() as ctx:
        loss = (await net(X)).sum()
        await ctx.backward(loss)
        await owner.crash()
        with pytest.raises(tc.errors.ContextLostError, match="the owner was killed while it was open"):
            await opt.step(ctx)
    await one_pass(ps, net, opt, 1)


async def test_objects_names_options_and_states_are_there(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 4, 2, name="net")
    tally = await ps.create("tests.integration.restarting.Tally", name="tally")
    assert await tally.add() == 1
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    await net.load_state_dict({"weight": torch.full((2, 4), 3.0), "bias": torch.ones(2)})
    await opt.set_options(lr=0.25)
    await net.parameter("bias").requires_grad_(False)
    gone = await ps.module(nn.Linear, 1, 1, name="gone")
    await ps.delete("gone")
    dropped = await ps.module(nn.Linear, 1, 1)
    del dropped
    await tally.add()
    written = bits([await net.state_dict(), await opt.state_dict()])
    await owner.crash()
    assert bits([await net.state_dict(), await opt.state_dict()]) == written
    assert await tally.add() == 3
    await one_pass(ps, net, opt, 0)
    bias = (await net.state_dict())["bias"]
    assert torch.equal(bias, torch.ones(2))
    with pytest.raises(tc.errors.StaleHandleError):
        await gone.state_dict()
    assert not (await ps.module(nn.Linear, 4, 2, name="net")).was_made


async def test_the_generator_goes_on(owner: Owner, ps: tc.Client) -> None:
    torch.manual_seed(3)
    expected = [nn.Linear(3, 3).state_dict() for _ in range(3)]
    torch.manual_seed(3)
    made = []
    for _ in range(3):
        net = await ps.module(nn.Linear, 3, 3)
        made.append(await net.state_dict())
        await owner.crash()
    assert bits(made) == bits([dict(each) for each in expected])


@hosted
class Normed(nn.Module):
    """A network with running statistics, and one number of calls in its state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(x))


async def test_running_statistics_are_there(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(f"{__name__}.Normed", seed=1)
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    torch.manual_seed(1)
    local = Normed()
    local_opt = optim.SGD(local.parameters(), lr=0.1)
    for i in range(9):
        await one_pass(ps, net, opt, i)
        local_pass(local, local_opt, i)
        if i % 3 == 2:
            await owner.crash()
    assert bits(await net.state_dict()) == bits(dict(local.state_dict()))


@hosted
class Clamped(nn.Linear):
    """A layer that a call writes to."""

    @remote
    def clamp(self, most: float) -> None:
        with torch.no_grad():
            self.weight.clamp_(-most, most)


async def test_what_calls_write_to_their_modules_is_there(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(f"{__name__}.Clamped", 4, 2, seed=1)
    opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
    torch.manual_seed(1)
    local = Clamped(4, 2)
    local_opt = optim.Adam(local.parameters(), lr=0.1)
    for i in range(8):
        await one_pass(ps, net, opt, i)
        await net.clamp(0.3 - 0.01 * i)
        local_pass(local, local_opt, i)
        local.clamp(0.3 - 0.01 * i)
        if i % 3 == 2:
            await owner.crash()
    assert bits(await net.state_dict()) == bits(dict(local.state_dict()))
    assert bits(await opt.state_dict()) == bits(local_opt.state_dict())


async def test_results_that_stay_are_there(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 4, 2, seed=1)
    kept = net(X)
    value = await net(X)
    await owner.crash()
    other = await ps.module(nn.Linear, 2, 2, seed=2)
    assert bits(await kept) == bits(value)
    assert torch.equal(await other(kept), await other(value))


@in_both_modes
async def test_trainers_train_through_many_kills(owner: Owner) -> None:
    stop, made = asyncio.Event(), asyncio.Semaphore(0)

    async def train(seed: int) -> int:
        done = 0
        async with tc.connect(owner.address) as ps:
            net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
            opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.01)

            async def step(ctx: tc.Context, i: int) -> None:
                await ctx.backward((await net(batch(i))).square().sum(), step=opt)

            while not stop.is_set():
                await ps.run(step, 100 * seed + done, attempts=100)
                done += 1
                made.release()
        return done

    tasks = [asyncio.create_task(train(seed)) for seed in range(3)]
    async with tc.connect(owner.address) as ps:
        for _ in range(3):
            for _ in range(12):
                await made.acquire()
            await owner.crash()
        stop.set()
        done = await asyncio.gather(*tasks)
        net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.01)
        async with ps.context() as ctx:
            await ctx.backward((await net(X)).sum())
            assert await opt.step(ctx) == {"ps0": sum(done) + 1}


async def test_an_owner_process_that_is_killed_goes_on(start_process: StartProcess, tmp_path: Path) -> None:
    flags = ("--name", "ps0", "--data-dir", str(tmp_path), "--durability", "interval:1")
    process = await start_process(*flags)
    async with tc.connect(process.address) as ps:
        net = await ps.module(nn.Linear, 4, 2, seed=1)
        opt = await ps.optimizer(optim.AdamW, net.parameters(), lr=0.1)
        torch.manual_seed(1)
        local = nn.Linear(4, 2)
        local_opt = optim.AdamW(local.parameters(), lr=0.1)
        for i in range(6):
            await one_pass(ps, net, opt, i)
            local_pass(local, local_opt, i)
            if i % 3 == 1:
                process.process.kill()
                await process.process.wait()
                process = await start_process(*flags, "--listen", process.address)
        assert bits(await net.state_dict()) == bits(dict(local.state_dict()))
        assert bits(await opt.state_dict()) == bits(local_opt.state_dict())


@hosted
class Remembering(nn.Module):
    """A module with an extra state, and methods that change what torch's versions do not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x)

    def get_extra_state(self) -> int:
        return self.calls

    def set_extra_state(self, state: int) -> None:
        self.calls = state

    @remote
    def rebind(self) -> None:
        self.layer.weight.data = torch.full((2, 4), 5.0)

    @remote
    def freeze(self) -> None:
        self.layer.requires_grad_(False)

    @remote
    def draw(self) -> torch.Tensor:
        return torch.rand(2)


@hosted
class Counter:
    """A plain object whose calls run at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = torch.zeros(2)

    @remote
    def add(self, number: int) -> None:
        with self._lock:
            self.count += number

    @remote
    def get(self) -> torch.Tensor:
        return self.count.clone()

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"].clone()


async def test_what_methods_change_in_any_way_is_there(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(f"{__name__}.Remembering", seed=1)
    for _ in range(5):
        await net(X)
    await net.rebind()
    await owner.crash()
    state = await net.state_dict()
    assert torch.equal(state["layer.weight"], torch.full((2, 4), 5.0)) and state["_extra_state"] == 5
    await net.freeze()
    await owner.crash()
    assert not any(each.requires_grad for each in owner.server.engine.registry.find(net.ref).value.parameters())
    torch.manual_seed(3)
    expected = [torch.rand(2) for _ in range(3)]
    torch.manual_seed(3)
    drawn = []
    for _ in range(3):
        drawn.append(await net.draw())
        await owner.crash()
    assert bits(drawn) == bits(expected)


async def test_requests_that_fail_do_not_keep_it_from_starting(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    with pytest.raises(tc.errors.UnknownNameError):
        await ps.delete("never there")
    with pytest.raises(tc.errors.InvalidArgumentError):
        await net.load_state_dict({"weight": torch.ones(3, 3)})
    with pytest.raises(tc.errors.InvalidArgumentError):
        await opt.set_options(no_such_option=1.0)
    written = bits([await net.state_dict(), await opt.state_dict()])
    await owner.crash()
    assert bits([await net.state_dict(), await opt.state_dict()]) == written
    await one_pass(ps, net, opt, 1)


@in_both_modes
async def test_calls_in_flight_at_a_kill_count_once(owner: Owner) -> None:
    async with tc.connect(owner.address, timeout=300, reconnect_timeout=300) as ps:
        counter = await ps.create(f"{__name__}.Counter")
        total = 0
        for _ in range(4):
            adding = [counter.add(each) for each in range(20)]
            await adding[4]
            await owner.crash()
            await asyncio.gather(*adding)
            total += sum(range(20))
            assert bits(await counter.get()) == bits(torch.full((2,), float(total)))


@in_both_modes
async def test_calls_beside_each_other_run_once(owner: Owner) -> None:
    async with tc.connect(owner.address) as one, tc.connect(owner.address) as other:
        nets = [await ps.module(f"{__name__}.Normed", name="net", seed=1) for ps in (one, other)]
        counters = [await ps.create(f"{__name__}.Counter", name="counter") for ps in (one, other)]

        async def both(net: tc.RemoteModule, counter: tc.RemoteObject) -> None:
            for _ in range(20):
                await net(torch.ones(3, 4))
                await counter.add(1)

        await asyncio.gather(*map(both, nets, counters))
        assert int((await nets[0].state_dict())["norm.num_batches_tracked"]) == 40
        assert bits(await counters[0].get()) == bits(torch.full((2,), 40.0))
