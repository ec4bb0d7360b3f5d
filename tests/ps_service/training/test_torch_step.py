"""A step that leaves out torch's hooks and profiler leaves them out only where there are none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import optim
from torch.nn import Parameter
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import ProfilerActivity, profile

from ps_service.training import torch_step


def sgd() -> tuple[Parameter, optim.SGD]:
    parameter = Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return parameter, optim.SGD([parameter], lr=0.5)


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what torch has recorded for a profiler."""
    recorded: list[str] = []
    original = torch.autograd.profiler.record_function

    def record(name: str) -> Any:
        recorded.append(name)
        return original(name)

    monkeypatch.setattr(torch.autograd.profiler, "record_function", record)
    return recorded


def test_a_step_without_hooks_leaves_the_wrapper_out(wrapped: list[str]) -> None:
    parameter, optimizer = sgd()
    torch_step.step(optimizer)
    assert parameter.tolist() == [0.5, 0.5]
    assert not wrapped, "has torch changed how it wraps the step of an optimizer?"


@pytest.mark.parametrize("globally", [True, False])
def test_hooks_are_called(wrapped: list[str], globally: bool) -> None:
    parameter, optimizer = sgd()
    called = []
    before = register_optimizer_step_pre_hook if globally else optimizer.register_step_pre_hook
    after = register_optimizer_step_post_hook if globally else optimizer.register_step_post_hook
    for register, name in [(before, "before"), (after, "after")]:
        handle = register(lambda *_, name=name: called.append((name, *parameter.tolist())))
        torch_step.step(optimizer)
        handle.remove()
    assert called == [("before", 1.0, 1.0), ("after", 0.0, 0.0)]
    assert len(wrapped) == 2


def test_a_scheduler_counts_the_steps() -> None:
    parameter, optimizer = sgd()
    scheduler = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    torch_step.step(optimizer)
    scheduler.step()  # torch warns if the optimizer has not stepped before
    torch_step.step(optimizer)
    assert parameter.tolist() == [0.25, 0.25]


def test_a_profiler_sees_the_step() -> None:
    _, optimizer = sgd()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch_step.step(optimizer)
    assert "Optimizer.step#SGD.step" in {event.key for event in profiler.key_averages()}


def test_a_class_that_has_never_been_wrapped_steps_as_it_says() -> None:
    class Plain:
        steps = 0

        def step(self) -> None:
            self.steps += 1

    plain = Plain()
    torch_step.step(plain)  # type: ignore[arg-type]
    assert plain.steps == 1
