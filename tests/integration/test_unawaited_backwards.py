"""Tests of passes whose program does not await their backwards and steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import torch
from torch import nn
from torch.nn.functional import mse_loss

import trainer_client as tc
from ps_wire.refs import Ref, new_object_id
from tests.integration.held import held_request
from tests.training import MODELS, owners, same_state
from tests.waiting import until
from trainer_client.contexts import backwards

X, Y = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(1, -1, 8).view(4, 2)


@pytest_asyncio.fixture
async def ps() -> AsyncIterator[tc.Client]:
    async with owners("ps0") as (server,), tc.connect(server.address) as client:
        yield client


NORM = 0.01
"""Far less than that of the gradients."""


async def local_copy(net: tc.RemoteModule) -> nn.Linear:
    local = nn.Linear(3, 2)
    local.load_state_dict(await net.state_dict())
    return local


async def trained(net: tc.RemoteModule, max_norm: float = float("inf")) -> nn.Linear:
    """The layer after one step of SGD, trained here."""
    local = await local_copy(net)
    opt = torch.optim.SGD(local.parameters(), lr=0.1)
    mse_loss(local(X), Y).backward()
    nn.utils.clip_grad_norm_(local.parameters(), max_norm)
    opt.step()
    return local


def in_one(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    ctx.backward(loss, step=opt)


def in_two(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    ctx.backward(loss)
    opt.step(ctx)


@pytest.mark.parametrize("learn", [in_one, in_two])
async def test_the_block_waits_for_what_was_not_awaited(ps: tc.Client, learn: Any) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    local = await trained(net)
    async with ps.context() as ctx:
        learn(ctx, mse_loss(await net(X), Y), opt)
    found = await net.state_dict()
    for name, value in local.state_dict().items():
        torch.testing.assert_close(found[name], value)


@pytest.mark.parametrize("scale", [None, 4.0], ids=["clipped", "unscaled and clipped"])
@pytest.mark.parametrize("late", ["norm", "scale"])
async def test_a_step_applies_what_was_clipped_before_it(
    ps: tc.Client, monkeypatch: pytest.MonkeyPatch, late: str, scale: float | None
) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    local = await trained(net, NORM)
    async with ps.context() as ctx:
        loss = scaler.scale(mse_loss(await net(X), Y))
        with held_request(monkeypatch, late) as clipping:
            ctx.backward(loss)
            opt.unscale(ctx, scaler)
            ctx.clip_grad_norm(net.parameters(), NORM)
            stepping = opt.step(ctx, scaler)
            await clipping.has_come()
            await ps.status()
            assert not stepping.done()
            await clipping.go_on()
    assert stepping.done()
    await same_state(net, local)


async def test_a_backward_adds_to_what_was_clipped_before_it(ps: tc.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    local = await local_copy(net)
    mse_loss(local(X), Y).backward()
    nn.utils.clip_grad_norm_(local.parameters(), NORM)
    local(X).sum().backward()
    torch.optim.SGD(local.parameters(), lr=0.1).step()
    async with ps.context() as ctx:
        await ctx.backward(mse_loss(await net(X), Y))
        loss = (await net(X)).sum()
        with held_request(monkeypatch, "norm") as clipping:
            ctx.clip_grad_norm(net.parameters(), NORM)
            await clipping.has_come()
            stepping = ctx.backward(loss, step=opt)
            await ps.status()
            assert not stepping.done()
            await clipping.go_on()
    await same_state(net, local)


async def test_a_backward_that_is_cancelled_while_it_waits_for_clipping_does_not_run(
    ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    local = await trained(net, NORM)
    async with ps.context() as ctx:
        await ctx.backward(mse_loss(await net(X), Y))
        loss = (await net(X)).sum()
        with held_request(monkeypatch, "norm") as clipping:
            ctx.clip_grad_norm(net.parameters(), NORM)
            await clipping.has_come()
            cancelled, last = ctx.backward(loss), ctx.backward(0 * loss)
            cancelled.cancel()
            await clipping.go_on()
        await last
        await opt.step(ctx)
    await same_state(net, local)


async def test_steps_of_tables_apply_what_was_clipped_before_them(ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    items = await ps.table("items", dim=3, optimizer=tc.tables.SGD(lr=0.1), init=tc.tables.Normal(1.0))
    opt = await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=1.0)
    ids = torch.arange(4)
    rows, before = await items(ids), await net.state_dict()
    async with ps.context() as ctx:
        ctx.backward(mse_loss(await net(await items(ids)), Y))
        ctx.clip_grad_norm([*items.parameters(), *net.parameters()], NORM)
        opt.step(ctx)
    after = await net.state_dict()
    moved = [(await items(ids) - rows) / 0.1, *(after[name] - before[name] for name in after)]
    norm = torch.linalg.vector_norm(torch.cat([each.flatten() for each in moved]))
    torch.testing.assert_close(norm, torch.tensor(NORM), rtol=1e-3, atol=0.0)


async def test_the_next_change_and_a_look_at_gradients_wait_for_the_one_before(ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    async with ps.context() as ctx:
        await ctx.backward(mse_loss(await net(X), Y))
        norms = [ctx.clip_grad_norm(net.parameters(), NORM / 2**number) for number in range(3)]
        found = await ctx.get_gradients()
        last = torch.linalg.vector_norm(torch.cat([each.flatten() for each in found.values()]))
        for norm, wanted in zip([*[await each for each in norms[1:]], last], (NORM, NORM / 2, NORM / 4), strict=True):
            torch.testing.assert_close(norm, torch.tensor(wanted), rtol=1e-3, atol=0.0)
        assert not ctx.unfinished


async def test_nothing_steps_behind_clipping_that_fails(ps: tc.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    before = await net.state_dict()
    other = tc.RemoteParameter.bare(net.session, Ref("ps0", new_object_id(), "gone"), torch.zeros(1))
    async with ps.context() as ctx:
        ctx.backward(mse_loss(await net(X), Y))
        ctx.clip_grad_norm([other], NORM)
        with pytest.raises(tc.errors.PsError, match="gone"):
            await opt.step(ctx)
    assert torch.equal((await net.state_dict())["weight"], before["weight"])


def in_a_step(ctx: tc.Context, opt: Any, net: tc.RemoteModule) -> tc.Pending[Any]:
    return opt.step(ctx)


def in_a_scaled_step(ctx: tc.Context, opt: Any, net: tc.RemoteModule) -> tc.Pending[Any]:
    return opt.step(ctx, torch.amp.GradScaler("cpu", init_scale=4.0))


async def in_a_backward(ctx: tc.Context, opt: Any, net: tc.RemoteModule) -> None:
    await ctx.backward((await net(X)).sum(), step=opt)


async def in_a_backward_of_a_thread(ctx: tc.Context, opt: Any, net: tc.RemoteModule) -> None:
    await asyncio.to_thread(ctx.propagate, (await net(X)).sum(), step=opt)


async def in_a_step_of_a_thread(ctx: tc.Context, opt: Any, net: tc.RemoteModule) -> None:
    await asyncio.to_thread(opt.apply, ctx)


def in_clipping(ctx: tc.Context, opt: Any, net: tc.RemoteModule) -> tc.Pending[Any]:
    return ctx.clip_grad_norm(net.parameters(), NORM)


TOLD = [in_a_step, in_a_scaled_step, in_a_step_of_a_thread, in_a_backward, in_a_backward_of_a_thread, in_clipping]


@pytest.mark.parametrize("told", TOLD)
async def test_what_is_begun_next_tells_of_clipping_that_has_failed(ps: tc.Client, told: Any) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    before = await net.state_dict()
    other = tc.RemoteParameter.bare(net.session, Ref("ps0", new_object_id(), "gone"), torch.zeros(1))
    async with ps.context() as ctx:
        await ctx.backward(mse_loss(await net(X), Y))
        clipping = ctx.clip_grad_norm([other], NORM)
        await until(clipping.done)
        with pytest.raises(tc.errors.PsError, match="gone"):
            await told(ctx, opt, net)
        assert torch.equal((await net.state_dict())["weight"], before["weight"])
        await opt.step(ctx)  # the program knows of it, and has decided
    assert not torch.equal((await net.state_dict())["weight"], before["weight"])


def begun_backward(ctx: tc.Context, opt: Any, loss: torch.Tensor) -> tc.Pending[Any]:
    return ctx.backward(loss)


def begun_step(ctx: tc.Context, opt: Any, loss: torch.Tensor) -> tc.Pending[Any]:
    return opt.step(ctx)


def begun_look(ctx: tc.Context, opt: Any, loss: torch.Tensor) -> tc.Pending[Any]:
    return ctx.get_gradients()


@pytest.mark.parametrize("begin", [begun_backward, begun_step, begun_look])
async def test_what_fails_behind_clipping_and_nobody_awaits_lets_nothing_step(ps: tc.Client, begin: Any) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    before = await net.state_dict()
    other = tc.RemoteParameter.bare(net.session, Ref("ps0", new_object_id(), "gone"), torch.zeros(1))
    async with ps.context() as ctx:
        await ctx.backward(mse_loss(await net(X), Y))
        loss = (await net(X)).sum()
        clipping = ctx.clip_grad_norm([other], NORM)
        await until(clipping.done)
        behind = begin(ctx, opt, loss)
        await until(behind.done)
        with pytest.raises(tc.errors.PsError, match="gone"):
            await opt.step(ctx)
    assert torch.equal((await net.state_dict())["weight"], before["weight"])


@pytest.mark.parametrize("steps", [False, True], ids=["backward", "backward with a step"])
async def test_a_cancelled_backward_hides_no_failed_clipping(
    ps: tc.Client, monkeypatch: pytest.MonkeyPatch, steps: bool
) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    before = await net.state_dict()
    other = tc.RemoteParameter.bare(net.session, Ref("ps0", new_object_id(), "gone"), torch.zeros(1))
    waiting, ended = threading.Event(), threading.Event()
    wait = backwards.wait_here

    def noted(*of: Any) -> None:
        waiting.set()
        try:
            wait(*of)
        finally:
            ended.set()

    monkeypatch.setattr(backwards, "wait_here", noted)
    async with ps.context() as ctx:
        await ctx.backward(mse_loss(await net(X), Y))
        loss = (await net(X)).sum()
        with held_request(monkeypatch, "norm") as clipping:
            begun = ctx.clip_grad_norm([other], NORM)
            await clipping.has_come()
            backward = ctx.backward(loss, step=opt if steps else None)
            await until(waiting.is_set)
            backward.cancel()
            await clipping.go_on()
        await until(lambda: begun.done() and ended.is_set())
        with pytest.raises(tc.errors.PsError, match="gone"):
            await opt.step(ctx)
    assert torch.equal((await net.state_dict())["weight"], before["weight"])


async def test_a_step_that_fails_behind_a_backward_and_nobody_awaits_lets_no_other_step(ps: tc.Client) -> None:
    bad, net = await ps.module(f"{MODELS}.Explodes", 3), await ps.module(nn.Linear, 3, 2)
    opt, other = [await ps.optimizer(torch.optim.SGD, each.parameters(), lr=0.1) for each in (bad, net)]
    before = await net.state_dict()
    async with ps.context() as ctx:
        await ctx.backward(mse_loss(await net(X), Y))
        ctx.backward((await bad(X, explode=True)).sum())
        await until(opt.step(ctx).done)
        with pytest.raises(tc.errors.RemoteError, match="broken"):
            await other.step(ctx)
    assert torch.equal((await net.state_dict())["weight"], before["weight"])


async def test_clipping_whose_failure_was_read_or_that_was_cancelled_stops_nothing(
    ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    local = await trained(net)
    other = tc.RemoteParameter.bare(net.session, Ref("ps0", new_object_id(), "gone"), torch.zeros(1))
    async with ps.context() as ctx:
        await ctx.backward(mse_loss(await net(X), Y))
        with pytest.raises(tc.errors.PsError, match="gone"):
            await ctx.clip_grad_norm([other], NORM)
        with held_request(monkeypatch, "norm") as clipping:
            begun = ctx.clip_grad_norm(net.parameters(), NORM)
            await clipping.has_come()
            begun.cancel()
        await opt.step(ctx)
    await same_state(net, local)


async def test_a_step_tells_of_a_backward_that_has_failed_before_it(ps: tc.Client) -> None:
    net = await ps.module(f"{MODELS}.Explodes", 3)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    before = await net.state_dict()
    async with ps.context() as ctx:
        await ctx.backward((await net(X)).sum())
        backward = ctx.backward((await net(X, explode=True)).sum())
        await until(backward.done)
        with pytest.raises(tc.errors.RemoteError, match="broken"):
            await opt.step(ctx)
    assert torch.equal((await net.state_dict())["inner.weight"], before["inner.weight"])


async def test_a_backward_that_was_cancelled_and_fails_stops_no_step(
    ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = await ps.module(f"{MODELS}.Explodes", 3)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    before = await net.state_dict()
    async with ps.context() as ctx:
        with held_request(monkeypatch, "backward") as late:
            backward = ctx.backward((await net(X, explode=True)).sum())
            await late.has_come()
            backward.cancel()
            await late.go_on()
        await ctx.backward((await net(X)).sum())  # after the end of the first
        await opt.step(ctx)
    assert not torch.equal((await net.state_dict())["inner.weight"], before["inner.weight"])


async def test_it_waits_for_steps_of_tables_too(ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    items = await ps.table("items", dim=3, optimizer=tc.tables.SGD(lr=0.1), init=tc.tables.Normal(1.0))
    opt = await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.1)
    ids = torch.arange(4)
    before = await items(ids)
    async with ps.context() as ctx:
        ctx.backward(mse_loss(await net(await items(ids)), Y))
        opt.step(ctx)
    assert not torch.equal(before, await items(ids))


async def test_the_block_raises_the_error_of_what_was_not_awaited(ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, non_finite="refuse")
    before = await net.state_dict()
    with pytest.raises(tc.errors.NonFiniteGradientError):
        async with ps.context() as ctx:
            ctx.backward((await net(X)).sum() * float("nan"), step=opt)
    assert ctx.ended
    assert torch.equal((await net.state_dict())["weight"], before["weight"])


async def test_a_block_that_is_left_by_an_error_waits_for_nothing(ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, policy=tc.policies.Sync(2))
    with pytest.raises(KeyError):
        async with ps.context() as ctx:
            begun = ctx.backward((await net(X)).sum(), step=opt)
            raise KeyError
    assert ctx.ended
    begun.cancel()


async def test_a_block_of_with_cannot_wait_and_says_so(ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    with pytest.raises(tc.errors.InvalidArgumentError, match="await it, or use `async with`"), ps.context() as ctx:
        begun = ctx.backward((await net(X)).sum(), step=opt)
    assert ctx.ended
    begun.cancel()
