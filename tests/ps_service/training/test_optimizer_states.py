"""States of optimizers and schedulers: torch's own, as copies, taken over wholly or not at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler

from ps_service.training.schedulers import HostedScheduler
from ps_wire.errors import InvalidArgumentError
from tests.ps_service.training.owned import Owner, assert_same_state


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_the_state_is_torchs_and_goes_both_ways(owner: Owner) -> None:
    local = Owner().parameters
    reference = optim.Adam(local, lr=0.01)
    hosted = owner.optimizer(optim.Adam, lr=0.5)
    for step in range(2):
        for parameter, gradient in zip(local, owner.gradients(step).values(), strict=True):
            parameter.grad = gradient
        reference.step()
    hosted.load_state_dict(reference.state_dict())
    assert_same_state(hosted.state_dict(), reference.state_dict())
    fresh = optim.Adam(Owner().parameters)
    fresh.load_state_dict(hosted.state_dict())
    assert fresh.param_groups[0]["lr"] == 0.01


def test_a_state_that_was_given_out_is_a_copy(owner: Owner) -> None:
    hosted = owner.optimizer(optim.SGD, lr=0.1, momentum=0.9)
    hosted.step(owner.context(owner.gradients(0)))
    state = hosted.state_dict()
    before = state["state"][0]["momentum_buffer"].clone()
    hosted.step(owner.context(owner.gradients(1)))
    assert torch.equal(state["state"][0]["momentum_buffer"], before)
    state["param_groups"][0]["lr"] = 7.0
    assert hosted.optimizer.param_groups[0]["lr"] == 0.1


def _broken_states() -> dict[str, Any]:
    owner = Owner()
    hosted = owner.optimizer(optim.Adam)
    hosted.step(owner.context(owner.gradients(0)))

    def broken(change: Any) -> Any:
        state = hosted.state_dict()
        change(state)
        return state

    return {
        "not a dict": [1],
        "empty": {},
        "no groups": broken(lambda s: s.pop("param_groups")),
        "groups of nothing": broken(lambda s: s.update(param_groups=[1])),
        "fewer parameters": broken(lambda s: s["param_groups"][0]["params"].pop()),
        "more groups": broken(lambda s: s["param_groups"].append(s["param_groups"][0])),
        "another shape": broken(lambda s: s["state"][0].update(exp_avg=torch.zeros(5))),
        "unknown parameter": broken(lambda s: s["state"].update({9: s["state"][0]})),
        "a state that is none": broken(lambda s: s["state"].update({0: "text"})),
        "half a state": broken(lambda s: s["state"][0].pop("exp_avg")),
        "text for a tensor": broken(lambda s: s["state"][0].update(exp_avg="text")),
        "a bad option": broken(lambda s: s["param_groups"][0].update(lr="fast")),
        "a missing option": broken(lambda s: s["param_groups"][0].pop("betas")),
    }


@pytest.mark.parametrize("case", _broken_states())
def test_a_state_that_does_not_fit_changes_nothing(owner: Owner, case: str) -> None:
    hosted = owner.optimizer(optim.Adam)
    hosted.step(owner.context(owner.gradients(1)))
    before = hosted.state_dict()
    with pytest.raises(InvalidArgumentError):
        hosted.load_state_dict(_broken_states()[case])
    assert_same_state(hosted.state_dict(), before)
    assert hosted.step(owner.context(owner.gradients(2))) == 2


# Schedulers


def test_a_scheduler_sets_the_rates_of_a_hosted_optimizer(owner: Owner) -> None:
    hosted = owner.optimizer(optim.SGD, [([0], {"lr": 1.0}), ([1, 2], {})], lr=0.5)
    scheduler = HostedScheduler(lr_scheduler.ExponentialLR, hosted, (), {"gamma": 0.5})
    hosted.step(owner.context(owner.gradients(0)))
    assert scheduler.get_last_lr() == [1.0, 0.5]
    assert scheduler.step() == scheduler.get_last_lr() == [0.5, 0.25]


def test_a_scheduler_may_want_a_metric(owner: Owner) -> None:
    hosted = owner.optimizer(optim.SGD, lr=0.5)
    scheduler = HostedScheduler(lr_scheduler.ReduceLROnPlateau, hosted, (), {"patience": 0, "factor": 0.1})
    assert scheduler.step(1.0) == [0.5]
    assert scheduler.step(2.0) == [pytest.approx(0.05)]


def test_a_schedule_goes_on_from_a_state(owner: Owner) -> None:
    first = HostedScheduler(lr_scheduler.StepLR, owner.optimizer(optim.SGD, lr=1.0), (2,), {})
    second = HostedScheduler(lr_scheduler.StepLR, owner.optimizer(optim.SGD, lr=1.0), (2,), {})
    first.hosted.step(owner.context(owner.gradients(0)))
    second.hosted.step(owner.context(owner.gradients(0)))
    first.step()
    second.load_state_dict(first.state_dict())
    assert second.step() == [pytest.approx(0.1)]


@pytest.mark.parametrize(
    "change", [{"step": 1}, {"optimizer": None}, {"last_epoch": "now"}, {"base_lrs": []}, {"gamma": [1]}], ids=str
)
def test_a_schedulers_state_that_does_not_fit_changes_nothing(owner: Owner, change: dict[str, Any]) -> None:
    scheduler = HostedScheduler(lr_scheduler.StepLR, owner.optimizer(optim.SGD, lr=1.0), (2,), {})
    before = scheduler.state_dict()
    with pytest.raises(InvalidArgumentError):
        scheduler.load_state_dict({**before, **change})
    assert scheduler.state_dict() == before
