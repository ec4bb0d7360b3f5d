"""A step on the event loop is computed behind its answer, and what follows the answer sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.execution.inline_limit import InlineLimit
from ps_service.rpc.session_stream import SessionStream
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.runtime.latency import Latency

X = torch.ones(2, 3)
Trained = tuple[tc.RemoteModule, tc.DistributedOptimizer]
Order = list[str]


@pytest.fixture(autouse=True)
def order(monkeypatch: pytest.MonkeyPatch) -> Order:
    """Whether steps were written, and answers sent, in which order. All work counts as short."""
    monkeypatch.setattr(Latency, "expected", lambda self, size=0: 0.0)
    monkeypatch.setattr(Latency, "seconds", 0.0)
    monkeypatch.setattr(InlineLimit, "admits", lambda self, seconds: True)
    made: Order = []

    def noted(cls: type, name: str) -> None:
        original: Callable[..., Any] = getattr(cls, name)

        def note(self: Any, *args: Any) -> Any:
            made.append(name)
            return original(self, *args)

        monkeypatch.setattr(cls, name, note)

    noted(HostedOptimizer, "write")
    noted(SessionStream, "send")
    return made


async def trained(ps: tc.Client, **options: Any) -> Trained:
    net = await ps.module(torch.nn.Linear, 3, 2, seed=1)
    return net, await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, **options)


async def one_pass(
    ps: tc.Client, net: tc.RemoteModule, *optimizers: tc.DistributedOptimizer, apart: bool = False
) -> None:
    async with ps.context() as ctx:
        loss = (await net(X)).square().sum()
        if apart:
            await ctx.backward(loss)
            for each in optimizers:
                await each.step(ctx)
        else:
            await ctx.backward(loss, step=list(optimizers))


def local(passes: int, steps: int = 1) -> torch.nn.Linear:
    """What local torch trains in as many passes, with so many optimizers."""
    torch.manual_seed(1)
    net = torch.nn.Linear(3, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(passes):
        net(X).square().sum().backward()
        for _ in range(steps):
            opt.step()
        opt.zero_grad()
    return net


async def same(net: tc.RemoteModule, other: torch.nn.Linear) -> bool:
    state = await net.state_dict()
    return all(torch.equal(state[name], value) for name, value in other.state_dict().items())


@pytest.mark.parametrize("apart", [False, True])
async def test_the_answer_is_sent_before_the_parameters_are_written(ps: tc.Client, order: Order, apart: bool) -> None:
    net, opt = await trained(ps)
    await one_pass(ps, net, opt, apart=apart)
    order.clear()
    await one_pass(ps, net, opt, apart=apart)
    assert order.count("write") == 1
    assert order[order.index("write") - 1] == "send"
    assert await same(net, local(2))


async def test_a_step_that_may_still_be_refused_is_made_before_its_answer(ps: tc.Client, order: Order) -> None:
    net = await ps.module(torch.nn.Linear, 3, 2, seed=1)
    opt = await ps.optimizer(torch.optim.Adafactor, net.parameters(), lr=0.1)
    order.clear()
    async with ps.context() as ctx:
        await ctx.backward((await net(X)).square().sum(), step=opt)
    assert order[:3] == ["send", "write", "send"]


async def test_two_optimizers_of_the_same_parameters_step_one_after_the_other(ps: tc.Client) -> None:
    net, one = await trained(ps, name="one")
    other = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, name="other")
    for _ in range(3):
        await one_pass(ps, net, one, other)
    assert await same(net, local(3, steps=2))
    assert {each.name: each.calls for each in (await ps.status()).operations}["step"] == 6


async def test_a_step_that_fails_behind_its_answer_is_told_with_the_next(
    ps: tc.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    net, opt = await trained(ps)

    def fail(self: HostedOptimizer, present: Any) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(HostedOptimizer, "write", fail)
        await one_pass(ps, net, opt)
    assert "failed after its answer" in caplog.text
    with pytest.raises(tc.errors.InternalError, match=r"step 1 of this optimizer failed after its answer.*no memory"):
        await one_pass(ps, net, opt)
    await one_pass(ps, net, opt)
    assert await same(net, local(1))
