"""Tests of `opt.step(ctx)` behind a backward that was not awaited: it waits for it, or fails with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from tests.integration.held import held_request
from tests.integration.linear_layers import X, linear, steps
from tests.training import MODELS, same, same_state, training
from tests.waiting import SECONDS
from trainer_client.session.in_flight import InFlightRequest
from trainer_client.session.session import Session


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Of each request that was sent, the operations of the requests that it follows."""
    noted: list[list[str]] = []
    send = Session.send

    def noting(session: Session, in_flight: InFlightRequest[object]) -> tc.Pending[object]:
        noted.append([in_flight.operation, *(each.operation for each in in_flight.follows)])
        return send(session, in_flight)

    monkeypatch.setattr(Session, "send", noting)
    return noted


def stepped(here: nn.Module, loss: torch.Tensor) -> nn.Module:
    """A local module after the backward of a loss and one step."""
    loss.backward()
    optim.SGD(here.parameters(), lr=0.1).step()
    return here


@pytest.mark.parametrize("graded", [False, True], ids=["inputs want none", "inputs want gradients"])
async def test_a_step_applies_the_gradients_of_the_backward_before_it(graded: bool) -> None:
    async with training() as ((server,), ps):
        net, here = await linear(ps)
        opt, own = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1), optim.SGD(here.parameters(), lr=0.1)
        for _ in range(5):
            x = X.clone().requires_grad_(graded)
            async with ps.context() as ctx:
                backward = ctx.backward((await net(x)).square().sum())
                versions = await opt.step(ctx)
                await backward
            own.zero_grad()
            here(X).square().sum().backward()
            own.step()
            await same_state(net, here)
        assert versions == {"ps0": 5} and steps(server) == 5


async def test_the_step_is_sent_right_behind_the_backward(followed: list[list[str]]) -> None:
    async with training() as (_, ps):
        net, _ = await linear(ps)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        async with asyncio.timeout(SECONDS):
            # The local part has to be known to be short, which it is not always on a busy machine.
            while followed[:2] != [["backward"], ["step", "backward"]]:
                async with ps.context() as ctx:
                    loss = (await net(X)).sum()
                    followed.clear()
                    backward, step = ctx.backward(loss), opt.step(ctx)
                    await step
                    await backward


@pytest.mark.parametrize("names", [("ps0", "ps0"), ("ps0", "ps1")], ids=["one owner", "two owners"])
async def test_nothing_steps_behind_a_backward_that_fails(names: tuple[str, str]) -> None:
    async with training("ps0", "ps1") as (_, ps):
        (good, here), (bad, _) = await linear(ps, names[0]), await linear(ps, names[1], f"{MODELS}.Explodes")
        opt = await ps.optimizer(optim.SGD, [*good.parameters(), *bad.parameters()], lr=0.1)
        for _ in range(3):
            async with ps.context() as ctx:
                loss = (await good(X)).sum() + (await bad(X, explode=True)).sum()
                backward = ctx.backward(loss)
                with pytest.raises(tc.errors.RemoteError, match="broken"):
                    await opt.step(ctx)
                with pytest.raises(tc.errors.RemoteError, match="broken"):
                    await backward
        await same_state(good, here)


async def test_a_step_on_two_owners_and_here_waits_for_the_whole_backward() -> None:
    async with training("ps0", "ps1") as (_, ps):
        (one, one_here), (two, two_here) = await linear(ps), await linear(ps, "ps1")
        bias, bias_here = (torch.zeros(3, requires_grad=True) for _ in range(2))
        opt = await ps.optimizer(optim.SGD, [*one.parameters(), *two.parameters(), bias], lr=0.1)
        own = optim.SGD([*one_here.parameters(), *two_here.parameters(), bias_here], lr=0.1)
        for _ in range(4):
            async with ps.context() as ctx:
                backward = ctx.backward((await one(X + bias)).sum() * (await two(X)).sum())
                await opt.step(ctx)
                await backward
            own.zero_grad()
            (one_here(X + bias_here).sum() * two_here(X).sum()).backward()
            own.step()
            await same_state(one, one_here)
            await same_state(two, two_here)
            same(bias, bias_here, "the local parameter")


async def test_a_scaled_step_waits_for_the_backward() -> None:
    async with training() as (_, ps):
        net, here = await linear(ps)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        async with ps.context() as ctx:
            backward = ctx.backward(scaler.scale((await net(X)).sum()))
            await opt.step(ctx, scaler)
            await backward
        await same_state(net, stepped(here, here(X).sum()))


async def test_unscaling_waits_for_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    async with training() as (_, ps):
        net, here = await linear(ps)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        async with ps.context() as ctx:
            loss = scaler.scale((await net(X)).sum())
            with held_request(monkeypatch, "backward") as late:
                ctx.backward(loss)
                unscaling = opt.unscale(ctx, scaler)
                await late.has_come()
                await ps.status()
                assert not unscaling.done()
                await late.go_on()
            await unscaling
            await opt.step(ctx, scaler)
        await same_state(net, stepped(here, here(X).sum()))


async def test_unscaling_fails_with_the_backward_and_the_scaler_has_unscaled_nothing() -> None:
    async with training() as (_, ps):
        net, _ = await linear(ps, cls=f"{MODELS}.Explodes")
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        async with ps.context() as ctx:
            backward = ctx.backward(scaler.scale((await net(X, explode=True)).sum()))
            for failing in (opt.unscale(ctx, scaler), backward):
                with pytest.raises(tc.errors.RemoteError, match="broken"):
                    await failing
        async with ps.context() as ctx:
            await ctx.backward(scaler.scale((await net(X)).sum()))
            await opt.unscale(ctx, scaler)  # raises if it has done so since its last update


async def test_a_step_waits_for_two_backwards() -> None:
    async with training() as (_, ps):
        net, here = await linear(ps)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        async with ps.context() as ctx:
            one, two = (await net(X)).sum(), (await net(2 * X)).sum()
            backwards = [ctx.backward(one), ctx.backward(two)]
            await opt.step(ctx)
            await asyncio.gather(*backwards)
        await same_state(net, stepped(here, here(X).sum() + here(2 * X).sum()))


async def test_a_step_that_is_given_up_gives_up_no_backward() -> None:
    async with training() as (_, ps):
        net, _ = await linear(ps)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        async with ps.context() as ctx:
            backward, step = ctx.backward((await net(X)).sum()), opt.step(ctx)
            step.cancel()
            with pytest.raises(tc.errors.CancelledCallError):
                await step
            await backward
            assert len(await ctx.get_gradients()) == 2


async def test_gradients_and_their_norm_wait_for_the_backward() -> None:
    async with training() as (_, ps):
        net, here = await linear(ps)
        here(X).sum().backward()
        wanted = torch.stack([each.grad.norm() for each in here.parameters() if each.grad is not None]).norm()
        async with ps.context() as ctx:
            backward = ctx.backward((await net(X)).sum())
            assert len(await ctx.get_gradients()) == 2
            await backward
            # The answers of a backward that has ended are not kept.
            assert not ctx.sent_to(net.session)
            assert ctx._backwards._sent == (None, ())
        async with ps.context() as ctx:
            backward = ctx.backward((await net(X)).sum())
            same(await ctx.clip_grad_norm(net.parameters(), 1.0), wanted, "norm")
            await backward


async def test_a_hook_may_look_at_gradients_while_its_backward_runs() -> None:
    async with training() as (_, ps):
        net, _ = await linear(ps)
        found: list[int] = []

        def look(gradient: torch.Tensor) -> None:
            found.append(len(ctx.get_gradients().wait(20)))

        for _ in range(2):
            x = (X.clone().requires_grad_() * 2).requires_grad_()
            # Hooks in Python keep a backward in its thread.
            x.register_hook(look)
            async with ps.context() as ctx:
                await ctx.backward((await net(x)).sum())
        # The layer's own, whose backward has run before.
        assert found == [2, 2]


def short(output: torch.Tensor) -> torch.Tensor:
    return output.sum()


def not_seen_yet(output: torch.Tensor) -> torch.Tensor:
    return output.sinh().cosh().atan().erfc().square().sum()


@pytest.mark.parametrize("loss_of", [short, not_seen_yet])
async def test_a_backward_with_a_step_tells_of_one_that_fails_while_it_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, loss_of: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    async with training() as (_, ps):
        (good, here), (bad, _) = await linear(ps), await linear(ps, "ps0", f"{MODELS}.Explodes")
        opt = await ps.optimizer(optim.SGD, good.parameters(), lr=0.1)
        async with ps.context() as ctx:
            failing, loss = loss_of(await bad(X, explode=True)), (await good(X)).sum()
            with held_request(monkeypatch, "backward") as late:
                ctx.backward(failing)
                await late.has_come()
                stepping = ctx.backward(loss, step=opt)
                await ps.status()
                assert not stepping.done()
                await late.go_on()
            with pytest.raises(tc.errors.RemoteError, match="broken"):
                await stepping
            await same_state(good, here)
            await ctx.backward((await good(X)).sum(), step=opt)  # the program knows of it, and has decided
        await same_state(good, stepped(here, here(X).sum()))
