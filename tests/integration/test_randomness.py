"""Tests that a trainer that seeds its calls gets the same random numbers in every run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service.hosting.views import CLEAN_CALLS
from ps_wire.numerics.seeds import Seeds, derived
from tests.autograd_models import MeetsBetween
from tests.conftest import StartProcess
from tests.integration.restarting import Owner
from tests.training import apart, identical, owners, training, twin
from trainer_client.transport.faulty import Direction, Fault, FaultyConnector
from trainer_client.transport.grpc_stream import GrpcConnector

X = torch.ones(4, 32)


async def disturbed(ps: tc.Client, stop: asyncio.Event) -> None:
    """Another trainer, whose calls draw from the owner's own generator all the time."""
    drop = await ps.module("torch.nn.Dropout", 0.5)
    while not stop.is_set():
        await asyncio.gather(*(drop(X) for _ in range(4)))


def test_seeds_follow_from_one_number() -> None:
    assert [derived(0), derived(7, 0, 1), derived(-1, 3)] == [derived(2**64), derived(7, 0, 1), derived(2**64 - 1, 3)]
    one, other = Seeds(7), Seeds(7)
    assert [one.next(), one.next()] == [other.next(), other.next()] == [derived(7, 0, 1), derived(7, 0, 2)]
    first, second = one.branch(), one.branch()
    assert len({first.next(), first.next(), second.next(), one.next(), Seeds(8).next()}) == 5
    assert other.branch().next() == derived(derived(7, 1, 1), 0, 1)


async def test_a_seed_gives_the_numbers_of_a_local_seed() -> None:
    async with training() as (_, ps):
        torch.manual_seed(5)
        wanted = nn.Linear(6, 6)
        made = await ps.module("torch.nn.Linear", 6, 6, seed=5)
        assert identical(dict(await made.state_dict()), dict(wanted.state_dict()))
        drop = await ps.module("torch.nn.Dropout", 0.5)
        torch.manual_seed(11)
        dropped = nn.Dropout(0.5)(X)
        assert torch.equal(await drop.options(seed=11)(X), dropped)
        x = X.clone().requires_grad_()
        async with ps.context() as ctx:
            y = await drop.options(seed=11)(x)
            await ctx.backward(y.sum())
            assert torch.equal(y, dropped) and torch.equal(ctx.gradient(x), dropped)
        assert torch.equal(await drop.options(seed=11).eval()(X), X)
        assert drop.options(seed=11).options(timeout=3.0)._options.seed == 11


@pytest.mark.parametrize("seed", [-3, np.int64(-3), torch.tensor(-3), (1 << 64) - 3], ids=repr)
async def test_seeds_may_be_negative_and_numbers_of_numpy_or_torch(ps: tc.Client, seed: Any) -> None:
    torch.manual_seed(-3)
    local = nn.Linear(6, 6)
    made = await ps.module("torch.nn.Linear", 6, 6, seed=seed)
    assert all(torch.equal(value, local.state_dict()[name]) for name, value in (await made.state_dict()).items())
    torch.manual_seed(-3)
    dropped = nn.Dropout(0.5)(X)
    drop = await ps.module("torch.nn.Dropout", 0.5)
    assert torch.equal(await drop.options(seed=seed)(X), dropped)


async def run(ps: tc.Client, seed: int | None, name: str = "") -> list[Any]:
    """What a program draws: outside of contexts, and in passes side by side."""
    if seed is not None:
        ps.manual_seed(seed)
    drop = await ps.module("torch.nn.Dropout", 0.5)
    net = await ps.module("torch.nn.Linear", 32, 32, name=name)
    found: list[Any] = [dict(await net.state_dict()), *await asyncio.gather(*(drop(X) for _ in range(3)))]

    async def one_pass(ctx: tc.Context) -> list[torch.Tensor]:
        async with ctx:
            x = X.clone().requires_grad_()
            y = await asyncio.gather(drop(x), drop(x * 2))
            await ctx.backward(torch.stack(y).sum())
            gradient = ctx.gradient(x)
            assert gradient is not None
            return [*y, gradient, await ps.call(torch.rand, 5), await drop(X)]

    contexts = [ps.context() for _ in range(3)]
    passes = await asyncio.gather(*(apart(one_pass(ctx)) for ctx in contexts))
    return [*found, *(tensor.detach() for each in passes for tensor in each)]


async def test_a_seeded_program_is_the_same_beside_other_trainers() -> None:
    async with owners("ps0") as (server,), tc.connect(server.address) as other:
        async with tc.connect(server.address, seed=7) as ps:
            alone = await run(ps, None)
        stop = asyncio.Event()
        disturbance = asyncio.create_task(disturbed(other, stop))
        async with tc.connect(server.address) as ps:
            for _ in range(2):
                assert identical(await run(ps, 7), alone)
            another, unseeded = await run(ps, 8), await run(ps, None)
            ps.manual_seed(None)
            unseeded = await run(ps, None)
        stop.set()
        await disturbance
        for found in (another, unseeded):
            assert not any(identical(one, other) for one, other in zip(found, alone, strict=True))
        drawn = [tensor for tensor in alone[1:] if tensor.shape == X.shape]
        assert len({tensor.numpy().tobytes() for tensor in drawn}) == len(drawn), "two calls drew the same numbers"


async def test_a_request_that_is_sent_again_draws_the_same() -> None:
    async with owners("ps0") as (server,):
        async with tc.connect(server.address, seed=7) as ps:
            wanted = await run(ps, None)
        for cut in range(2, 14, 3):

            def plan(direction: Direction, count: int, packet: Any, cut: int = cut) -> Fault:
                return Fault.CUT if count in (cut, cut + 5) else Fault.NONE

            faulty = FaultyConnector(GrpcConnector(server.address), plan)
            async with tc.connect(faulty, seed=7) as ps:
                assert identical(await run(ps, None), wanted)


async def test_trainers_with_seeds_still_share_named_objects() -> None:
    async with training() as ((server,), one), tc.connect(server.address, seed=2) as two:
        one.manual_seed(1)
        net = await one.module("torch.nn.Linear", 2, 2, name="net")
        assert await two.module("torch.nn.Linear", 2, 2, name="net") == net
        with pytest.raises(tc.errors.NameConflictError):
            await two.module("torch.nn.Linear", 2, 2, name="net", seed=3)


async def test_calls_that_hosted_code_makes_have_seeds_and_autocast_too(start_process: StartProcess) -> None:
    first = await start_process("--name", "ps0", "--directory", "self")
    second = await start_process("--name", "ps1", "--directory", first.address)
    async with tc.connect(first.address, second.address, seed=7) as ps, tc.connect(second.address) as other:
        stop = asyncio.Event()
        disturbance = asyncio.create_task(disturbed(other, stop))
        drop = await ps.module("torch.nn.Dropout", 0.5, owner="ps1")
        outer = await ps.module("tests.hosted_models.Delegating", owner="ps0")
        found = []
        for _ in range(3):
            ps.manual_seed(3)
            found.append([await outer(X, drop), await outer(X, drop)])
            async with ps.context():
                found[-1].append((await outer(X, drop)).detach())
        stop.set()
        await disturbance
        assert identical(found[0], found[1]) and identical(found[1], found[2])
        assert len({tensor.numpy().tobytes() for tensor in found[0]}) == 3
        torch.manual_seed(derived(derived(3, 0, 1), 0, 1))
        assert torch.equal(found[0][0], 2 * (X + nn.Dropout(0.5)(X)))
        inner = await ps.module("torch.nn.Linear", 32, 32, owner="ps1")
        local = await twin(inner, nn.Linear(32, 32))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = 2 * (X + local(X))
            assert torch.equal(await outer(X, inner), cast)
        assert torch.equal(await outer(X, inner), 2 * (X + local(X)))
        assert not torch.equal(cast, 2 * (X + local(X)))


async def test_an_owner_that_starts_again_goes_on_with_its_generator(tmp_path: Path) -> None:
    async with Owner(tmp_path / "data") as owner, tc.connect(owner.address) as ps:
        drop = await ps.module("torch.nn.Dropout", 0.5, name="drop")
        await ps.module("torch.nn.Linear", 4, 4, name="net", seed=2)
        await drop(X)
        state = torch.get_rng_state()
        wanted = nn.Dropout(0.5)(X)
        torch.set_rng_state(state)
        await owner.server.drain(20.0)
        torch.manual_seed(99)
        await owner.start()
        assert torch.equal(await drop(X), wanted)


# Autocast


class Regions:
    """A program under several autocast regions, whose modules are here or on an owner."""

    def __init__(self, modules: list[Any]) -> None:
        self.modules = modules

    async def call(self, number: int, x: torch.Tensor) -> torch.Tensor:
        found = self.modules[number](x)
        return found if isinstance(found, torch.Tensor) else await found

    async def outputs(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(await self.call(0, x))
            with torch.autocast("cpu", enabled=False):
                found.append(await self.call(1, found[0].float()))
            with torch.autocast("cpu", dtype=torch.float16):
                found.append(await self.call(2, x))
            with torch.no_grad():
                found.append(await self.call(1, x))
        found.append(await self.call(3, x))
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            y = await self.call(4, x)
            found.append(await self.call(4, y))
        return found


@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
async def test_autocast_is_that_of_a_local_run(inside: bool) -> None:
    async with training("ps0", "ps1") as (_, ps):
        handles = [await ps.module("torch.nn.Linear", 32, 32, owner=f"ps{number % 2}") for number in range(5)]
        twins = [await twin(handle, nn.Linear(32, 32)) for handle in handles]
        x, x_local = (torch.linspace(-3, 3, 128).view(4, 32).requires_grad_() for _ in range(2))
        wanted = await Regions(twins).outputs(x_local)
        weights = torch.linspace(0, 1, 128).view(4, 32)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            sum((each.float() * weights).sin().sum() for each in wanted).backward()
        async with ps.context() as ctx:
            found = await Regions(handles).outputs(x)
            assert [each.dtype for each in found] == [each.dtype for each in wanted]
            assert {torch.bfloat16, torch.float16, torch.float32} == {each.dtype for each in wanted}
            assert identical([each.detach() for each in found], [each.detach() for each in wanted])
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
                await ctx.backward(sum((each.float() * weights).sin().sum() for each in found))
            gradients = await ctx.get_gradients()
            for handle, local in zip(handles, twins, strict=True):
                for name, parameter in local.named_parameters():
                    assert identical(gradients[handle.parameter(name)], parameter.grad), name
            assert identical(ctx.gradient(x), x_local.grad)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (await handles[0](x)).dtype == torch.bfloat16
            assert (await ps.call(torch.mm, x, x.t())).dtype == torch.bfloat16
        assert (await handles[0](x)).dtype == torch.float32


async def test_calls_at_the_same_time_have_autocast_of_their_own(request: pytest.FixtureRequest) -> None:
    async with training() as (_, ps):
        net = await ps.module("tests.autograd_models.MeetsBetween", 32, request.node.name)
        local = MeetsBetween(32, "here")
        local.load_state_dict(await net.state_dict())
        async with ps.context():
            for _ in range(CLEAN_CALLS):  # from then on they run side by side
                await net(X)

        async def gradient(dtype: torch.dtype) -> torch.Tensor:
            async with ps.context() as ctx:
                with torch.autocast("cpu", dtype=dtype):
                    y = net(X, 2)
                y = await y
                assert y.dtype == dtype
                await ctx.backward(y.float().sin().sum())
                return (await ctx.get_gradients())[net.parameter("inner.weight")]

        dtypes = (torch.bfloat16, torch.float16)
        for dtype, found in zip(dtypes, await asyncio.gather(*map(gradient, dtypes)), strict=True):
            local.zero_grad()
            with torch.autocast("cpu", dtype=dtype, cache_enabled=False):
                local(X).float().sin().sum().backward()
            assert identical(found, local.inner.weight.grad)
