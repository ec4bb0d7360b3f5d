"""Tests that short requests run on the owner's event loop, and in a thread if they would have to wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import torch

import trainer_client as tc
from ps_service.execution import inline_limit
from ps_service.server import Server
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.decorators import remote
from tests import hosted_models
from tests.latencies import expect
from tests.ps_service.threads import Worker

PROMPT = "tests.hosted_models.Prompt"


@pytest.fixture(autouse=True)
def ran_in() -> Iterator[list[str]]:
    """Where `Prompt` ran, as 'forward' or 'backward' and the thread's name."""
    hosted_models.RAN_IN.clear()
    yield hosted_models.RAN_IN
    hosted_models.RAN_IN.clear()


def hosted_optimizer(owner: Server, opt: tc.DistributedOptimizer) -> HostedOptimizer:
    (part,) = opt.remotes.values()
    value = owner.engine.registry.find(part.handle.ref).value
    assert isinstance(value, HostedOptimizer)
    return value


async def one_pass(ps: tc.Client, prompt: tc.RemoteModule, opt: tc.DistributedOptimizer) -> None:
    async with ps.context() as ctx:
        await ctx.backward((await prompt(torch.ones(3))).sum())
        await opt.step(ctx)


async def test_a_small_pass_comes_to_run_on_the_event_loop(
    owner: Server, ps: tc.Client, ran_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ps_wire.runtime.latency.INLINE_SECONDS", 10.0)
    prompt = await ps.module(PROMPT, name="prompt")
    opt = await ps.optimizer(torch.optim.SGD, prompt.parameters(), lr=0.5)
    await one_pass(ps, prompt, opt)
    # Nothing is known of it yet.
    assert all("ps-compute" in each for each in ran_in) and len(ran_in) == 2
    forward = owner.engine.registry.find(prompt.ref).method("forward")
    for latency in (forward.latency, forward.backward_latency, hosted_optimizer(owner, opt).latency):
        expect(latency, 0.0)
    ran_in.clear()
    await one_pass(ps, prompt, opt)
    here = threading.current_thread().name
    assert ran_in == [f"forward {here}", f"backward {here}"]
    assert torch.equal(await prompt.parameter("scale").to_here(), torch.zeros(3))


async def test_a_request_that_is_much_larger_than_the_short_ones_runs_in_a_thread(
    owner: Server, ps: tc.Client, ran_in: list[str]
) -> None:
    prompt = await ps.module(PROMPT, name="prompt")
    opt = await ps.optimizer(torch.optim.SGD, prompt.parameters(), lr=0.5)
    await one_pass(ps, prompt, opt)
    hosted = owner.engine.registry.find(prompt.ref)
    hosted_step = hosted_optimizer(owner, opt)
    for latency in (hosted.method("forward").latency, hosted_step.latency):
        expect(latency, 0.0, most=2)
    stepped_in: list[str] = []
    hosted_step.optimizer.register_step_pre_hook(lambda *_: stepped_in.append(threading.current_thread().name))
    ran_in.clear()
    await one_pass(ps, prompt, opt)
    assert "ps-compute" in ran_in[0]
    assert len(stepped_in) == 1 and "ps-compute" in stepped_in[0]
    assert torch.equal(await prompt.parameter("scale").to_here(), torch.zeros(3))


async def test_a_slow_method_stays_in_a_thread(owner: Server, ps: tc.Client, ran_in: list[str]) -> None:
    prompt = await ps.module(PROMPT, name="prompt")
    hosted = owner.engine.registry.find(prompt.ref)
    expect(hosted.method("forward").latency, 1.0)
    await prompt(torch.ones(3))
    assert "ps-compute" in ran_in[0]


async def test_longer_work_runs_on_the_event_loop_while_nothing_else_waits(
    owner: Server, ps: tc.Client, ps2: tc.Client, ran_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = await ps.module(PROMPT, name="prompt")
    other = await ps2.attach("prompt")
    hosted = owner.engine.registry.find(prompt.ref)
    monkeypatch.setattr(inline_limit, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(type(owner.engine.counters), "is_busy", False)
    owner.engine.compute.hand_over_seconds = 1.0

    async def call(module: tc.RemoteModule) -> str:
        expect(hosted.method("forward").latency, 0.9 * inline_limit.MOST_SECONDS)
        ran_in.clear()
        await module(torch.ones(30_000))
        return ran_in[0]

    monkeypatch.setattr(hosted_models.Prompt, "forward", remote(inline=True)(lambda self, x: note(x, ran_in)))
    assert "ps-compute" not in await call(prompt)
    monkeypatch.setattr(inline_limit, "QUIET_SECONDS", 1000.0)
    assert "ps-compute" in await call(other), "another trainer is there"
    assert "ps-compute" in await call(prompt)


def note(x: torch.Tensor, ran_in: list[str]) -> torch.Tensor:
    ran_in.append(threading.current_thread().name)
    return x


async def test_a_quick_call_gives_way_to_a_step_in_progress(owner: Server, ps: tc.Client, ran_in: list[str]) -> None:
    prompt = await ps.module(PROMPT, name="prompt")
    hosted = owner.engine.registry.find(prompt.ref)
    expect(hosted.method("forward").latency, 0.0)
    begun, go_on = threading.Event(), threading.Event()

    def step() -> None:
        with owner.engine.parameter_locks.writing(
            list(hosted.parameters.values()), hosted.parameter_states, consistent=True
        ):
            begun.set()
            assert go_on.wait(20)

    stepping = Worker(step)
    await asyncio.to_thread(begun.wait)
    call = prompt(torch.ones(3))
    # The event loop is not held up meanwhile.
    assert (await ps.status()).requests_in_flight >= 1
    go_on.set()
    assert torch.equal(await call, torch.ones(3))
    assert len(ran_in) == 1 and "ps-compute" in ran_in[0]
    stepping.result()


async def test_a_quick_step_gives_way_to_another(owner: Server, ps: tc.Client) -> None:
    prompt = await ps.module(PROMPT, name="prompt")
    opt = await ps.optimizer(torch.optim.SGD, prompt.parameters(), lr=0.5)
    hosted = hosted_optimizer(owner, opt)
    expect(hosted.latency, 0.0)
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with hosted.lock:
            begun.set()
            assert go_on.wait(20)

    async with ps.context() as ctx:
        await ctx.backward((await prompt(torch.ones(3))).sum())
        holding = Worker(hold)
        await asyncio.to_thread(begun.wait)
        step = opt.step(ctx)
        assert (await ps.status()).requests_in_flight >= 1
        go_on.set()
        assert await step == {"ps0": 1}
    holding.result()
