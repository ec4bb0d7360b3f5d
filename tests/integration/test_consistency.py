"""Steps and passes at the same moment: what a pass began with stays as it was, and nothing is copied without need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.hosting.views import CLEAN_CALLS, MOST_CHANGES
from ps_service.parameters.locks import COPY_AT_MOST
from ps_service.server import Server
from tests import autograd_models
from tests.training import (
    MODELS,
    OPTIMIZERS,
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

PATIENCE = 60.0
IDS = torch.tensor([[0, 2], [1, 0]])

MAKES: dict[str, tuple[str, tuple[Any, ...], torch.Tensor]] = {
    "linear": ("torch.nn.Linear", (4, 4), torch.randn(3, 4)),
    "LSTM": ("torch.nn.LSTM", (4, 4), torch.randn(5, 2, 4)),
    "tied": (f"{MODELS}.Tied", (5, 4), IDS),
    "computed weights": (f"{MODELS}.Normed", (4,), torch.randn(3, 4)),
    "one piece of memory": (f"{MODELS}.Flat", (4,), torch.randn(3, 4)),
    "rows": ("torch.nn.EmbeddingBag", (5, 4), IDS),
}


@pytest.fixture
async def trainers() -> AsyncIterator[tuple[Server, tc.Client, tc.Client]]:
    """An owner and two trainers of it."""
    async with owners("ps0") as (server,), tc.connect(server.address) as one, tc.connect(server.address) as other:
        yield server, one, other


Trainers = tuple[Server, tc.Client, tc.Client]


def _local(cls: str, args: tuple[Any, ...]) -> nn.Module:
    name = cls.rpartition(".")[2]
    made: nn.Module = getattr(autograd_models if cls.startswith(MODELS) else nn, name)(*args)
    return made


def _loss(result: Any) -> torch.Tensor:
    return (result[0] if isinstance(result, tuple) else result).square().sum()


async def _step(ps: tc.Client, net: tc.RemoteModule, opt: tc.DistributedOptimizer, x: torch.Tensor) -> None:
    async with ps.context() as ctx:
        await ctx.backward(_loss(await net(x)))
        await opt.step(ctx)


@pytest.mark.parametrize(("make", "cls"), [*((make, optim.SGD) for make in MAKES), (next(iter(MAKES)), optim.Adam)])
async def test_a_pass_keeps_the_numbers_it_began_with(
    trainers: Trainers, make: str, cls: type[optim.Optimizer]
) -> None:
    server, one, other = trainers
    name, args, x = MAKES[make]
    net, theirs = [await ps.module(name, *args, name="net") for ps in (one, other)]
    opt = await other.optimizer(cls, theirs.parameters(), lr=0.1)
    # Evaluation, because one of the modules counts its training calls in a buffer.
    net.eval()
    theirs.eval()
    before = (await twin(net, _local(name, args))).eval()
    ours, twins = ([x.clone().requires_grad_(x.is_floating_point()) for _ in range(2)] for _ in range(2))
    async with one.context() as ctx:
        first = _loss(await net(ours[0]))
        for _ in range(3):
            await apart(_step(other, theirs, opt, x))
        after = (await twin(net, _local(name, args))).eval()
        assert not torch.equal(next(before.parameters()), next(after.parameters()))
        second = _loss(await net(ours[1]))
        await apart(_step(other, theirs, opt, x))
        await ctx.backward([first, second])
        # Each call was computed and is propagated with what it saw.
        for module, mine, leaf in zip((before, after), (first, second), twins, strict=True):
            wanted = _loss(module(leaf))
            same(mine.detach(), wanted.detach(), "loss")
            wanted.backward()
        for seen, also in zip(before.parameters(), after.parameters(), strict=True):
            assert seen.grad is not None and also.grad is not None
            seen.grad += also.grad
        inputs = {f"input {n}": pair for n, pair in enumerate(zip(ours, twins, strict=True)) if pair[0].requires_grad}
        await same_gradients(ctx, [(net, before)], inputs)
    await one.status()
    assert pins(server) == 0


async def test_a_pass_that_steps_may_go_on_with_its_graph() -> None:
    async with training() as ((server,), ps):
        net = await ps.module(f"{MODELS}.Flat", 4)
        local = await twin(net, autograd_models.Flat(4))
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        x = torch.randn(3, 4)
        local(x).sum().backward()
        async with ps.context() as ctx:
            loss = (await net(x)).sum()
            await ctx.backward(loss, retain_graph=True)
            await opt.step(ctx)
            await ctx.backward(loss)
            for parameter in local.parameters():
                assert parameter.grad is not None
                parameter.grad *= 2
            await same_gradients(ctx, [(net, local)])
        await ps.status()
        assert pins(server) == 0


async def test_only_parameters_saved_by_another_pass_are_copied(trainers: Trainers) -> None:
    server, one, other = trainers
    nets = [
        await one.module("torch.nn.Embedding", 5, 4, name="table"),
        await one.module("torch.nn.Linear", 4, 4, name="linear"),
    ]
    table, linear = (hosted_value(server, net) for net in nets)
    parameters = {"table": table.weight, "weight": linear.weight, "bias": linear.bias}
    theirs: list[Any] = [await other.attach("table"), await other.attach("linear")]
    opt = await other.optimizer(optim.SGD, [p for net in theirs for p in net.parameters()], lr=0.1)

    async def step() -> None:
        async with other.context() as ctx:
            await ctx.backward((await theirs[1](await theirs[0](torch.tensor([0, 1])))).sum())
            await opt.step(ctx)

    async def moved() -> set[str]:
        """Which parameters a step of the other trainer moves to other storage; all of them change."""
        places = {name: parameter.data_ptr() for name, parameter in parameters.items()}
        values = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        await apart(step())
        assert not any(torch.equal(parameter, values[name]) for name, parameter in parameters.items())
        return {name for name, parameter in parameters.items() if parameter.data_ptr() != places[name]}

    # After the first calls, which have the modules to themselves.
    for _ in range(CLEAN_CALLS + 1):
        assert await moved() == set()
    async with one.context() as ctx:
        loss = (await nets[1](await nets[0](torch.tensor([1, 2])))).sum()
        # The look-up saved the ids alone, and the layer its weight.
        assert await moved() == {"weight"}
        # The pass has its copy: there is nothing to keep a second time.
        assert await moved() == set()
        await ctx.backward(loss)
    async with one.context() as ctx:
        await ctx.backward((await nets[1](await nets[0](torch.tensor([1, 2])))).sum())
        # Propagated, it needs nothing any more.
        assert await moved() == set()
    async with one.context():
        await nets[1](torch.ones(1, 4))
        assert await moved() == set()  # an input that wants no gradient needs no weight
        await nets[1](torch.ones(1, 4, requires_grad=True))
        assert await moved() == {"weight"}
    await one.status()
    # After the first calls, which have the modules to themselves.
    for _ in range(CLEAN_CALLS + 1):
        assert await moved() == set()
    assert pins(server) == 0


async def test_inconsistent_steps_write_in_place_under_open_passes(trainers: Trainers) -> None:
    server, one, other = trainers
    net, theirs = [await ps.module("torch.nn.Linear", 4, 4, name="net") for ps in (one, other)]
    opt = await other.optimizer(optim.SGD, theirs.parameters(), lr=0.1, reads="inconsistent")
    weight = hosted_value(server, net).weight
    place = weight.data_ptr()
    x = torch.ones(1, 4, requires_grad=True)
    await run_before(one, net, x)
    async with one.context() as ctx:
        loss = (await net(x)).sum()
        await apart(_step(other, theirs, opt, torch.ones(1, 4)))
        assert weight.data_ptr() == place
        # Torch does not complain, and what comes back was computed with the numbers that are there now.
        await ctx.backward(loss)
        same(ctx.gradient(x), weight.detach().sum(0, keepdim=True), "input")
    await one.status()
    assert pins(server) == 0


@pytest.mark.parametrize("reads", ["consistent", "inconsistent"])
async def test_two_optimizers_of_one_parameter_step_one_after_the_other(trainers: Trainers, reads: Any) -> None:
    _, one, other = trainers
    what = f"a step with {reads} reads"
    nets = [await ps.module("torch.nn.Linear", 4, 4, bias=False, name="net") for ps in (one, other)]
    await nets[0].load_state_dict({"weight": torch.zeros(4, 4)})
    slow = await one.optimizer(
        f"{OPTIMIZERS}.Pausing", nets[0].parameters(), name="slow", reads=reads, lr=1.0, what=what
    )
    fast = await other.optimizer(optim.SGD, nets[1].parameters(), name="fast", reads=reads, lr=1.0)
    propagated, begun = asyncio.Event(), asyncio.Event()

    async def step(ps: tc.Client, net: tc.RemoteModule, opt: tc.DistributedOptimizer, go: asyncio.Event) -> None:
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(1, 4))).sum())
            propagated.set()
            await go.wait()
            await opt.step(ctx)

    second = asyncio.create_task(step(other, nets[1], fast, begun))
    await propagated.wait()
    first = asyncio.create_task(step(one, nets[0], slow, propagated))
    assert await asyncio.to_thread(autograd_models.event(f"{what} has begun").wait, PATIENCE)
    begun.set()
    await other.status()
    autograd_models.event(f"{what} may go on").set()
    await asyncio.gather(first, second)
    # There is one `.grad`; if both had used it at once, one of them would have found it empty.
    assert torch.equal((await nets[0].state_dict())["weight"], torch.full((4, 4), -2.0))


async def test_passes_of_a_trainer_that_leaves_pin_nothing(trainers: Trainers) -> None:
    server, one, _ = trainers
    async with tc.connect(server.address) as third:
        # It changes itself in each call, so it has no views; its first calls have memory of their own.
        net = await third.module(f"{MODELS}.Averaging", 4, name="net")
        for _ in range(MOST_CHANGES + 1):
            async with third.context():
                await net(torch.ones(2, 4))
        context = third.context()
        context.enter()
        await net(torch.ones(2, 4, requires_grad=True))
        assert pins(server) > 0
    status = await one.status()
    assert status.contexts == 0
    assert pins(server) == 0
    # Only now, so that the trainer left without ending it.
    context.end()


@pytest.mark.parametrize("reads", ["consistent", "inconsistent"])
async def test_a_forward_in_the_middle_of_a_step_waits_only_if_reads_are_consistent(
    trainers: Trainers, reads: Any
) -> None:
    server, one, other = trainers
    what = f"half a step with {reads} reads"
    net, theirs = [await ps.module(f"{MODELS}.Parallel", 4, name="net") for ps in (one, other)]
    opt = await other.optimizer(f"{OPTIMIZERS}.Pausing", theirs.parameters(), reads=reads, lr=0.1, what=what, at=1)
    step = asyncio.create_task(_step(other, theirs, opt, torch.ones(1, 4)))
    assert await asyncio.to_thread(autograd_models.event(f"{what} has begun").wait, PATIENCE)
    forward = net(torch.ones(1, 4))
    if reads == "inconsistent":
        # It does not wait, and sees what there is.
        _, first, second = await forward
        assert not torch.equal(first, second)
    else:
        for _ in range(20):
            await one.status()
        assert not forward.done()
    autograd_models.event(f"{what} may go on").set()
    await step
    _, first, second = await (forward if reads == "consistent" else net(torch.ones(1, 4)))
    assert torch.equal(first, second)
    assert not torch.equal(first, torch.eye(4))
    await one.status()
    assert pins(server) == 0


async def test_no_forward_sees_half_a_step(trainers: Trainers) -> None:
    server, one, other = trainers
    nets = [await ps.module(f"{MODELS}.Parallel", 40, name="net") for ps in (one, other)]
    opts = [
        await ps.optimizer(optim.SGD, net.parameters(), lr=0.01) for ps, net in zip((one, other), nets, strict=True)
    ]

    async def run(trainer: int, number: int) -> None:
        net = nets[trainer]
        x = torch.full((2, 40), 0.01 * number, requires_grad=True)
        async with (one, other)[trainer].context() as ctx:
            y, first, second = await net(x)
            assert torch.equal(first, second)
            await ctx.backward(y.sum())
            # Exact for the numbers that this pass saw, whatever was stepped meanwhile.
            y.detach_()
            seen = [each.clone().requires_grad_() for each in (x.detach(), first, second)]
            wanted = torch.autograd.grad((torch.sin(seen[0] @ seen[1]) + torch.sin(seen[0] @ seen[2])).sum(), seen)
            found = await ctx.get_gradients()
            same(found[x], wanted[0], number)
            same(found[net.parameter("first")], wanted[1], number)
            same(found[net.parameter("second")], wanted[2], number)
            await opts[trainer].step(ctx)

    await asyncio.gather(*(run(trainer, number) for number in range(10) for trainer in (0, 1)))
    state = await nets[0].state_dict()
    assert torch.equal(state["first"], state["second"])
    assert not torch.equal(state["first"], torch.eye(40))
    await asyncio.gather(one.status(), other.status())
    assert pins(server) == 0


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
async def test_a_step_during_a_forward_leaves_it_its_numbers(trainers: Trainers, large: bool) -> None:
    server, one, other = trainers
    name = f"a step during a forward {large}"
    size = (COPY_AT_MOST // 4 // 1024 + 1, 1024) if large else (1, 1)
    net, theirs = [await ps.module(f"{MODELS}.Waits", *size, name, name="net") for ps in (one, other)]
    inner = await one.module("torch.nn.Linear", 1, 1, name="inner")
    also: Any = await other.attach("inner")
    opt = await other.optimizer(optim.SGD, [*theirs.parameters(), *also.parameters()], lr=1.0)
    local = await twin(inner, nn.Linear(1, 1))
    go, begun = (autograd_models.event(f"{name} {what}") for what in ("may go on", "has begun"))
    go.set()
    await run_before(other, theirs, torch.zeros(1), also)
    place = hosted_value(server, net).weight.data_ptr()
    propagated, reading, issued = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def step() -> dict[str, int]:
        async with other.context() as ctx:
            await ctx.backward((await theirs(torch.zeros(1), also)).sum())
            propagated.set()
            await reading.wait()
            stepping = opt.step(ctx)
            issued.set()
            return await stepping

    go.set()
    task = asyncio.create_task(step())
    await propagated.wait()
    go.clear()
    begun.clear()
    async with one.context() as ctx:
        forward = net(torch.zeros(1), inner)
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        reading.set()
        await issued.wait()
        # The storage was copied for it, because the forward may still save it; what is large, after a moment.
        assert await task == {"ps0": 1}
        assert hosted_value(server, net).weight.data_ptr() != place
        # Others read on while it runs.
        assert (await theirs.state_dict())["weight"][0, 0] != 1.0
        go.set()
        y = await forward
        await ctx.backward(y.sum())
    # It read its own weight before the step; the inner layer, borrowed later, from before or after it as a whole.
    stepped = await twin(inner, nn.Linear(1, 1))
    assert any(torch.allclose(y, layer(torch.ones(1))) for layer in (local, stepped))
    assert hosted_value(server, net).weight[0, 0] != 1.0
    await one.status()
    assert pins(server) == 0


async def test_a_step_does_not_wait_for_a_forward_of_its_own_pass_for_ever() -> None:
    async with training() as ((server,), ps):
        name = "a forward of the same pass"
        net = await ps.module(f"{MODELS}.Waits", COPY_AT_MOST // 4 // 1024 + 1, 1024, name)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=1.0)
        go, begun = (autograd_models.event(f"{name} {what}") for what in ("may go on", "has begun"))
        async with ps.context() as ctx:
            go.set()
            await ctx.backward((await net(torch.zeros(1))).sum())
            go.clear()
            begun.clear()
            forward = net(torch.zeros(1))
            assert await asyncio.to_thread(begun.wait, PATIENCE)
            stepping = opt.step(ctx)
            await ps.status()
            go.set()
            assert float((await forward).detach()) == 1.0
            assert await stepping == {"ps0": 1}
        await ps.status()
        assert pins(server) == 0


async def test_loading_a_state_leaves_open_passes_their_numbers(trainers: Trainers) -> None:
    server, one, other = trainers
    net, theirs = [await ps.module(f"{MODELS}.Flat", 4, name="net") for ps in (one, other)]
    local = await twin(net, autograd_models.Flat(4))
    x = torch.randn(3, 4)
    async with one.context() as ctx:
        loss = (await net(x)).sum()
        loaded = autograd_models.Flat(4)
        await theirs.load_state_dict(loaded.state_dict())
        await same_state(net, loaded)
        await ctx.backward(loss)
        local(x).sum().backward()
        await same_gradients(ctx, [(net, local)])
    await one.status()
    assert pins(server) == 0
