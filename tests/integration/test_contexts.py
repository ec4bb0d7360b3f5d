"""Tests that concurrent passes never mix, and that an ended context cannot be used."""

from __future__ import annotations

import asyncio
import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service.passes import contexts
from ps_service.server import Server
from ps_wire.refs import ContextId
from tests import autograd_models
from tests.training import MODELS, owners, pins, same, training, twin

SIZE = 4
Expected = dict[str, torch.Tensor | None]


def expected(first: nn.Module, second: nn.Module, shared: nn.Module, x: torch.Tensor, factor: float) -> Expected:
    """The gradients of a pass, from local autograd on copies."""
    first, second, shared = copy.deepcopy((first, second, shared))
    (factor * second(torch.tanh(shared(first(x))))).sum().backward()
    named = {"first": first, "second": second, "shared": shared}
    return {f"{key}.{name}": p.grad for key, module in named.items() for name, p in module.named_parameters()}


async def test_passes_of_several_trainers_never_mix() -> None:
    async with owners("ps0", "ps1") as servers:
        addresses = [server.address for server in servers]
        async with tc.connect(*addresses) as one, tc.connect(*reversed(addresses)) as other:
            nets = [
                (
                    await ps.module("torch.nn.Linear", SIZE, SIZE, name="first", owner="ps0"),
                    await ps.module("torch.nn.Linear", SIZE, SIZE, name="second", owner="ps1"),
                )
                for ps in (one, other)
            ]
            local = [await twin(handle, nn.Linear(SIZE, SIZE)) for handle in nets[0]]
            # All passes of both trainers have this one in the middle.
            shared = nn.Linear(SIZE, SIZE)

            async def run(trainer: int, number: int) -> None:
                first, second = nets[trainer]
                x = torch.full((2, SIZE), float(number + 1))
                async with (one, other)[trainer].context() as ctx:
                    y = await second(torch.tanh(shared(await first(x))))
                    await ctx.backward((number - 7.0) * y.sum())
                    found = await ctx.get_gradients()
                    wanted = expected(*local, shared, x, number - 7.0)
                    assert len(found) == 6
                    for name in ("weight", "bias"):
                        same(found[first.parameter(name)], wanted[f"first.{name}"], (trainer, number))
                        same(found[second.parameter(name)], wanted[f"second.{name}"], (trainer, number))
                        same(found[getattr(shared, name)], wanted[f"shared.{name}"], (trainer, number))

            await asyncio.gather(*(run(trainer, number) for number in range(6) for trainer in (0, 1)))
            assert shared.weight.grad is None
        assert [pins(server) for server in servers] == [0, 0]


def test_passes_of_several_threads_never_mix(owner_process_address: str) -> None:
    with tc.connect(owner_process_address) as ps:
        net = ps.module("tests.hosted_models.Affine", SIZE, SIZE)
        state = net.state_dict()
        shared = nn.Linear(SIZE, SIZE)
        start = threading.Barrier(4)

        def run(thread: int) -> None:
            start.wait()
            for number in range(8):
                x = torch.full((2, SIZE), float(1 + thread + 10 * number), requires_grad=True)
                with ps.context() as ctx:
                    ctx.backward(net(shared(x).sin()).sum())
                    found = ctx.get_gradients()
                hidden = shared(x).sin()
                wanted = torch.autograd.grad((hidden @ state["weight"]).sum(), [x, shared.weight])
                same(found[net.parameter("weight").unwrapped], hidden.detach().T @ torch.ones(2, SIZE), thread)
                same(found[x], wanted[0], thread)
                same(found[shared.weight], wanted[1], thread)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, range(4)))
        assert shared.weight.grad is None


async def test_contexts_do_not_nest_but_run_side_by_side() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", SIZE, SIZE)
        async with ps.context() as outer:
            assert tc.current_context() is outer
            with pytest.raises(RuntimeError, match="contexts do not nest"):
                async with ps.context():
                    pass
            assert tc.current_context() is outer
            # The failed attempt has left this one as it was.
            await outer.backward((await net(torch.ones(1, SIZE))).sum())
            assert len(await outer.get_gradients()) == 2
        assert tc.current_context() is None
        with pytest.raises(tc.errors.ContextEndedError):
            async with outer:
                pass


async def test_two_open_contexts_keep_their_losses_apart() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", SIZE, SIZE)
        made, propagated = asyncio.Event(), asyncio.Event()
        losses: list[torch.Tensor] = []

        async def first() -> None:
            async with ps.context() as ctx:
                losses.append((await net(torch.ones(1, SIZE))).sum())
                made.set()
                await propagated.wait()
                await ctx.backward(losses[0])
                assert len(await ctx.get_gradients()) == 2

        async def second() -> None:
            async with ps.context() as ctx:
                await made.wait()
                loss = (await net(torch.ones(1, SIZE))).sum() + losses[0]
                try:
                    with pytest.raises(RuntimeError, match=r"ctx\.backward"):
                        await ctx.backward(loss, retain_graph=True)
                finally:
                    propagated.set()

        await asyncio.gather(first(), second())


async def test_an_ended_context_raises_a_typed_error() -> None:
    async with training() as ((server,), ps):
        net = await ps.module("torch.nn.Linear", SIZE, SIZE)
        local = nn.Linear(SIZE, SIZE)
        opt = await ps.optimizer(torch.optim.SGD, [*net.parameters(), *local.parameters()], lr=0.1)
        before, here = await net.state_dict(), copy.deepcopy(local.state_dict())
        left = asyncio.Event()

        async def straggler() -> None:
            # A task inherits the context in which it was made.
            await left.wait()
            with pytest.raises(tc.errors.ContextEndedError):
                await net(torch.ones(1, SIZE))

        async with ps.context() as ctx:
            task = asyncio.create_task(straggler())
            loss = (await net(local(torch.ones(1, SIZE)))).sum()
            await ctx.backward(loss, retain_graph=True)
        left.set()
        await task
        for late in (
            lambda: ctx.backward(loss),
            lambda: opt.step(ctx),
            lambda: ctx.get_gradients(),
            lambda: ctx.clip_grad_norm(net.parameters(), 1.0),
        ):
            with pytest.raises(tc.errors.ContextEndedError, match="ended"):
                await late()
        with pytest.raises(tc.errors.ContextEndedError):
            loss.backward(retain_graph=True)
        async with ps.context() as other:
            with pytest.raises(tc.errors.ContextEndedError):
                await other.backward(loss)
        assert not (await net(torch.ones(1, SIZE))).requires_grad
        assert all(torch.equal(value, before[name]) for name, value in (await net.state_dict()).items())
        assert all(torch.equal(value, here[name]) for name, value in local.state_dict().items())
        assert local.weight.grad is None
        assert (await ps.status()).contexts == 0
        assert pins(server) == 0


async def test_handles_of_another_client_are_refused() -> None:
    async with owners("ps0") as (server,), tc.connect(server.address) as one, tc.connect(server.address) as other:
        nets = [await ps.module("torch.nn.Linear", SIZE, SIZE, name="net") for ps in (one, other)]
        opt = await other.optimizer(torch.optim.SGD, nets[1].parameters(), lr=0.1)
        async with one.context() as ctx:
            await ctx.backward((await nets[0](torch.ones(1, SIZE))).sum())
            for refused in (
                lambda: nets[1](torch.ones(1, SIZE)),
                lambda: opt.step(ctx),
                lambda: ctx.clip_grad_norm(nets[1].parameters(), 1.0),
            ):
                with pytest.raises(tc.errors.InvalidArgumentError, match="belong to different clients"):
                    await refused()


async def test_a_call_that_is_still_running_when_its_context_ends_is_told() -> None:
    async with training() as ((server,), ps):
        net = await ps.module(f"{MODELS}.Waits", 2, 2, "ends meanwhile")
        async with ps.context():
            pending = net(torch.ones(2))
            assert await asyncio.to_thread(autograd_models.event("ends meanwhile has begun").wait, 20)
        await ps.status()
        autograd_models.event("ends meanwhile may go on").set()
        with pytest.raises(tc.errors.ContextEndedError):
            await pending
        assert (await ps.status()).contexts == 0
        assert pins(server) == 0


async def test_a_plain_thread_begins_outside_of_any_context() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", SIZE, SIZE)
        found: list[tc.Context | None] = []
        async with ps.context():
            thread = threading.Thread(target=lambda: found.append(tc.current_context()))
            thread.start()
            thread.join()
            assert (await asyncio.to_thread(tc.current_context)) is tc.current_context()
        assert found == [None]
        assert not (await net(torch.ones(1, SIZE))).requires_grad


@pytest.mark.parametrize("held", [1, 50])
async def test_one_opened_early_may_be_used_late(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """Each owner sees only some contexts; it knows of the others all the same, and remembers few numbers."""
    monkeypatch.setattr(contexts, "_REMEMBERED", 64)
    async with training("ps0", "ps1") as (servers, ps):
        nets = [await ps.module("torch.nn.Linear", 2, 2, owner=owner) for owner in ps.owners]
        early = [ps.context() for _ in range(held)]
        ended = []
        for number in range(150):
            async with ps.context() as ctx:
                await nets[number % 7 == 0](torch.ones(1, 2))
            ended.append(ctx.id)
        for ctx in early:
            async with ctx:
                y = await nets[1](await nets[0](torch.ones(1, 2)))
                await ctx.backward(y.sum())
                assert len(await ctx.get_gradients()) == 4
        for server in servers:
            await until_ended(ps, server, early[-1].id)
            for id in ended:
                with pytest.raises(tc.errors.ContextEndedError):
                    server.engine.contexts.open(id)
            ((numbers, _),) = server.engine.contexts.over().values()
            assert len(numbers.above) + len(numbers.holes) <= 64


async def until_ended(ps: tc.Client, server: Server, id: ContextId) -> None:
    while id.number not in server.engine.contexts.over()[ps.trainer][0]:
        await ps.status(server.engine.name)


async def test_a_pass_that_was_closed_in_its_block_takes_no_call() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", SIZE, SIZE)
        async with ps.context() as ctx:
            ctx.close()
            with pytest.raises(tc.errors.ContextEndedError):
                await net(torch.ones(1, SIZE))
