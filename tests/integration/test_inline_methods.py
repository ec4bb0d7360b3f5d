"""Tests that short methods of trainers' own modules, which call nobody, come to run on the owner's event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.hosting import objects
from ps_service.hosting.objects import SHORT_CALLS, Method
from ps_service.hosting.views import CLEAN_CALLS
from ps_service.server import Server
from ps_wire.decorators import remote
from ps_wire.runtime.scopes import current_scope
from tests import hosted_models
from tests.conftest import StartProcess
from tests.integration.support import COUNTER

SCALING = "tests.hosted_models.Scaling"
X = torch.ones(3)


@pytest.fixture(autouse=True)
def ran_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the threads in which `Scaling` ran. How busy the machine is makes no difference."""
    monkeypatch.setattr("ps_wire.runtime.latency.INLINE_SECONDS", 1000.0)
    monkeypatch.setattr("ps_wire.runtime.latency.FAR_SECONDS", 1000.0)
    monkeypatch.setattr(objects, "LONG_SECONDS", 1000.0)
    hosted_models.RAN_IN.clear()
    yield hosted_models.RAN_IN
    hosted_models.RAN_IN.clear()


async def called(scaling: tc.RemoteModule, times: int) -> None:
    for _ in range(times):
        assert torch.equal(await scaling(X), 2 * X)


def run_here(owner: Server, scaling: tc.RemoteModule, forward: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the module another forward, which runs on the event loop as the one before does."""
    hosted = owner.engine.registry.find(scaling.ref)
    known = hosted.method("forward")
    monkeypatch.setattr(hosted_models.Scaling, "forward", forward)
    again = hosted.method("forward")
    again.may_run_inline, again.latency = known.may_run_inline, known.latency


async def test_a_method_that_was_short_and_called_nobody_comes_to_run_here(ps: tc.Client, ran_in: list[str]) -> None:
    await called(await ps.module(SCALING), CLEAN_CALLS + SHORT_CALLS + 2)
    assert all("ps-compute" in each for each in ran_in[:-2])
    assert ran_in[-2:] == 2 * [threading.current_thread().name]


async def test_the_backward_comes_to_run_here_too(ps: tc.Client, ran_in: list[str]) -> None:
    scaling = await ps.module(SCALING)
    opt = await ps.optimizer(torch.optim.SGD, scaling.parameters(), lr=0.5)
    for step in range(CLEAN_CALLS + SHORT_CALLS + 4):
        async with ps.context() as ctx:
            found = await scaling(X)
            assert torch.equal(found, (2 - 0.5 * step) * X)
            await ctx.backward(found.sum(), step=opt)
    assert ran_in[-1] == threading.current_thread().name
    assert (await ps.status()).contexts == 0


class Doubling(torch.autograd.Function):
    """Doubles, and notes in which thread its backward runs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        hosted_models.RAN_IN.append(threading.current_thread().name)
        return 2 * gradient


class Plain:
    """Does what `Doubling` does, without code in the backward."""

    @staticmethod
    def apply(x: torch.Tensor) -> torch.Tensor:
        return 2 * x


async def test_a_backward_with_code_of_the_module_stays_in_a_thread(
    ps: tc.Client, ran_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    function: Any = Plain

    def forward(self: hosted_models.Scaling, x: torch.Tensor) -> Any:
        return function.apply(x * self.scale)

    monkeypatch.setattr(hosted_models.Scaling, "forward", forward)
    scaling = await ps.module(SCALING)

    async def one_pass() -> None:
        async with ps.context() as ctx:
            await ctx.backward((await scaling(X)).sum())

    for _ in range(CLEAN_CALLS + SHORT_CALLS + 4):
        await one_pass()
    function = Doubling
    await one_pass()
    assert len(ran_in) == 1 and "ps-compute" in ran_in[0]


async def test_a_method_that_begins_to_ask_others_fails_once_and_runs_in_a_thread_then(
    owner: Server, ps: tc.Client, ran_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling = await ps.module(SCALING)
    await called(scaling, CLEAN_CALLS + SHORT_CALLS + 1)
    ran_in.clear()

    def asking(self: hosted_models.Scaling, x: torch.Tensor) -> torch.Tensor:
        ran_in.append(threading.current_thread().name)
        scope = current_scope.get()
        assert scope is not None
        scope.within(None)  # as before each nested request
        return x * self.scale

    run_here(owner, scaling, asking, monkeypatch)
    with pytest.raises(tc.errors.ContextLostError, match="had to wait"):
        await scaling(X)
    await called(scaling, 2)
    here = threading.current_thread().name
    assert ran_in[0] == here and "ps-compute" in ran_in[1] and "ps-compute" in ran_in[2]


async def test_code_that_handles_everything_does_not_hide_that_it_was_stopped(
    owner: Server, ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling = await ps.module(SCALING)
    await called(scaling, CLEAN_CALLS + SHORT_CALLS + 1)

    def asking(self: hosted_models.Scaling, x: torch.Tensor) -> torch.Tensor:
        scope = current_scope.get()
        assert scope is not None
        try:
            scope.within(None)  # as before each nested request
        except BaseException:
            return x
        return x * self.scale

    run_here(owner, scaling, asking, monkeypatch)
    with pytest.raises(tc.errors.ContextLostError, match="had to wait"):
        await scaling(X)
    await called(scaling, 1)


async def test_what_was_done_before_a_method_asks_others_is_not_done_again(
    owner: Server, ps: tc.Client, ran_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling = await ps.module(SCALING)
    await called(scaling, CLEAN_CALLS + SHORT_CALLS + 1)
    ran_in.clear()

    def asking(self: hosted_models.Scaling, x: torch.Tensor) -> torch.Tensor:
        ran_in.append(threading.current_thread().name)
        self.asked = getattr(self, "asked", 0) + 1
        scope = current_scope.get()
        assert scope is not None
        scope.within(None)  # as before each nested request
        return x * self.asked

    run_here(owner, scaling, asking, monkeypatch)
    with pytest.raises(tc.errors.ContextLostError, match=r"forward .* had to wait .* has done so far may stay"):
        await scaling(X)
    assert torch.equal(await scaling(X), 2 * X)
    assert len(ran_in) == 2 and "ps-compute" in ran_in[1]


async def test_what_a_method_keeps_since_its_first_calls_is_not_changed_twice(
    owner: Server, ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    asks = False

    def forward(self: hosted_models.Scaling, x: torch.Tensor) -> torch.Tensor:
        if x.sum() < 0:
            self.counts = counts
        elif hasattr(self, "counts"):
            self.counts.append(1)
        scope = current_scope.get()
        if asks and scope is not None:
            scope.within(None)  # as before each nested request
        return x * self.scale

    monkeypatch.setattr(hosted_models.Scaling, "forward", forward)
    monkeypatch.setattr(hosted_models.Scaling, "again", remote(forward), raising=False)
    scaling = await ps.module(SCALING)
    for _ in range(CLEAN_CALLS + SHORT_CALLS + 1):
        await scaling(X)
        await scaling.call("again", X)
    await scaling(-X)
    asks = True
    with pytest.raises(tc.errors.ContextLostError, match="had to wait"):
        await scaling.call("again", X)
    assert counts == [1]


async def test_a_call_with_a_handle_changes_its_module_once(ps: tc.Client) -> None:
    noting, other = await ps.module("tests.hosted_models.Noting"), await ps.module(torch.nn.Linear, 3, 3)
    for _ in range(CLEAN_CALLS + SHORT_CALLS + 4):
        await noting.apply_to(X, other, False)
    for times in (1, 2, 3):
        await noting.apply_to(X, other, True)
        assert await noting.counts() == (times, times, times)


async def test_a_module_that_keeps_a_reference_stays_in_a_thread(
    ps: tc.Client, ran_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(self: hosted_models.Scaling, x: torch.Tensor, other: Any) -> torch.Tensor:
        self.others = [other]
        return x

    forward = hosted_models.Scaling.forward
    scaling, other = await ps.module(SCALING), await ps.module(torch.nn.Linear, 3, 3)
    monkeypatch.setattr(hosted_models.Scaling, "forward", keep)
    await scaling(X, other)
    monkeypatch.setattr(hosted_models.Scaling, "forward", forward)
    await called(scaling, CLEAN_CALLS + SHORT_CALLS + 4)
    assert all("ps-compute" in each for each in ran_in)


async def test_what_a_method_asks_of_others_is_asked_once(start_process: StartProcess) -> None:
    first = await start_process("--name", "ps0", "--directory", "self")
    second = await start_process("--name", "ps1", "--directory", first.address)
    async with tc.connect(first.address, second.address) as ps:
        counter = await ps.create(COUNTER, owner="ps1")
        scaling = await ps.module(SCALING, owner="ps0")
        for _ in range(3):
            await called(scaling, CLEAN_CALLS + SHORT_CALLS + 2)
            assert torch.equal(await scaling(X, counter), 2 * X)
        assert await counter.get() == 3


def test_a_method_that_was_long_once_stays_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "LONG_SECONDS", 0.25)
    known = Method(len, is_inline=False, is_deferred=False)
    for seconds in (*(0.2 for _ in range(SHORT_CALLS)), 0.3):
        known.note(seconds, waited=False)
        assert known.may_run_inline == (known._calls >= SHORT_CALLS)
    for _ in range(2 * SHORT_CALLS):
        known.note(0.0, waited=False)
    assert not known.may_run_inline
