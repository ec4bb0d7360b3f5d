"""A step on the event loop is computed behind its answer, and what follows the answer sees it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.execution.inline_limit import InlineLimit
from ps_service.rpc.session_stream import SessionStream
from ps_service.server import Server
from ps_service.training import foreach_steps
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
    send, write, plan = SessionStream.send, HostedOptimizer.write, foreach_steps.plan

    def noted_send(self: SessionStream, *args: Any) -> None:
        made.append("send")
        send(self, *args)

    def noted_write(self: HostedOptimizer, present: Any) -> None:
        made.append("write")
        write(self, present)

    def noted_plan(*args: Any) -> Any:
        parts = plan(*args)
        return parts if parts is None else [partial(made.append, "step"), *parts]

    monkeypatch.setattr(SessionStream, "send", noted_send)
    monkeypatch.setattr(HostedOptimizer, "write", noted_write)
    monkeypatch.setattr(foreach_steps, "plan", noted_plan)
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


def hosted_in(owner: Server) -> HostedOptimizer:
    """The only optimizer of an owner."""
    (found,) = (each.value for each in owner.engine.registry.objects() if isinstance(each.value, HostedOptimizer))
    return found


async def same(net: tc.RemoteModule, other: torch.nn.Linear) -> bool:
    state = await net.state_dict()
    return all(torch.equal(state[name], value) for name, value in other.state_dict().items())


@pytest.mark.parametrize("apart", [False, True])
async def test_the_answer_is_sent_before_the_parameters_are_written(ps: tc.Client, order: Order, apart: bool) -> None:
    net, opt = await trained(ps)
    await one_pass(ps, net, opt, apart=apart)
    order.clear()
    await one_pass(ps, net, opt, apart=apart)
    assert order.count("step") == 1 and "write" not in order
    assert order[order.index("step") - 1] == "send"
    assert await same(net, local(2))


@pytest.mark.parametrize(
    ("cls", "options"),
    [(torch.optim.Adafactor, {}), (torch.optim.Adam, {}), (torch.optim.SGD, {"reads": "inconsistent"})],
    ids=str,
)
async def test_a_step_that_may_still_be_refused_or_seen_is_made_before_its_answer(
    ps: tc.Client, order: Order, cls: Any, options: dict[str, Any]
) -> None:
    net = await ps.module(torch.nn.Linear, 3, 2, seed=1)
    opt = await ps.optimizer(cls, net.parameters(), lr=0.1, **options)
    order.clear()
    await one_pass(ps, net, opt)
    assert order[:2] == ["send", "write"] and order[-1] == "send"


async def test_a_hook_that_raises_is_an_error_of_its_step(ps: tc.Client, owner: Server) -> None:
    net, opt = await trained(ps)

    def fail(*_: Any) -> None:
        raise ValueError("the hook does not like it")

    hook = hosted_in(owner).optimizer.register_step_pre_hook(fail)
    with pytest.raises(tc.errors.RemoteError, match="does not like it"):
        await one_pass(ps, net, opt)
    hook.remove()
    await one_pass(ps, net, opt)
    assert await same(net, local(1))


async def test_a_state_of_another_shape_is_an_error_of_the_step(ps: tc.Client) -> None:
    net = await ps.module(torch.nn.Linear, 3, 2, seed=1)
    opt = await ps.optimizer(torch.optim.Adam, net.parameters(), lr=0.1)
    await one_pass(ps, net, opt)
    state = await opt.state_dict()
    state["state"][0]["exp_avg"] = torch.zeros(1)
    await opt.load_state_dict(state)
    before = await net.state_dict()
    with pytest.raises(tc.errors.PsError):
        await one_pass(ps, net, opt)
    after = await net.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


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

    def fail() -> None:
        raise MemoryError("no memory")

    def one_failing_pass() -> Any:
        patched.setattr(foreach_steps, "plan", lambda *_: [fail])
        return one_pass(ps, net, opt)

    with monkeypatch.context() as patched:
        await one_failing_pass()
    assert "failed after its answer" in caplog.text
    with pytest.raises(tc.errors.InternalError, match=r"step 1 of this optimizer failed after its answer.*no memory"):
        await one_pass(ps, net, opt)
    await one_pass(ps, net, opt)
    assert await same(net, local(1))
    with monkeypatch.context() as patched:
        await one_failing_pass()
    await opt.load_state_dict(await opt.state_dict())
    await one_pass(ps, net, opt)
