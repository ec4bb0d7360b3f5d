"""Tests that a state_dict is read between two steps, and loaded as a whole."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from ps_service.engine import Engine
from ps_service.hosting.objects import HostedObject
from ps_service.hosting.views import CLEAN_CALLS, Views
from ps_service.passes import calls
from ps_service.passes.arguments import Arguments
from ps_service.passes.call_frame import CallFrame
from ps_service.training import state_dicts
from ps_wire.errors import InvalidArgumentError
from tests.ps_service.threads import Worker, wait_for


class Slow(nn.Linear):
    """Takes its time when it is asked for its state."""

    begun, go_on = threading.Event(), threading.Event()

    def _save_to_state_dict(self, *args: Any) -> None:
        self.begun.set()
        wait_for(self.go_on)
        super()._save_to_state_dict(*args)


def host(engine: Engine, module: nn.Module) -> HostedObject:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return engine.registry.add(HostedObject(engine.name, module, engine.parameter_locks))


def add_one(engine: Engine, hosted: HostedObject) -> None:
    """A consistent step."""
    parameters = list(hosted.parameters.values())
    with engine.parameter_locks.writing(parameters, hosted.parameter_states, consistent=True), torch.no_grad():
        for parameter in parameters:
            parameter += 1


def test_a_step_meanwhile_does_not_tear_the_state(engine: Engine) -> None:
    for event in (Slow.begun, Slow.go_on):
        event.clear()
    hosted = host(engine, nn.Sequential(nn.Linear(2, 2), Slow(2, 2)))
    asking = Worker(lambda: state_dicts.state_of(engine, hosted))
    wait_for(Slow.begun)
    add_one(engine, hosted)
    Slow.go_on.set()
    state = asking.result()
    assert list(state) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [tensor.unique().tolist() for tensor in state.values()] == [[0.0]] * 4
    assert hosted.value[0].weight.unique().tolist() == [1.0]


def test_a_state_is_a_copy_of_parameters_and_buffers_with_torchs_keys(engine: Engine) -> None:
    hosted = host(engine, nn.BatchNorm1d(2))
    state = state_dicts.state_of(engine, hosted)
    assert list(state) == list(nn.BatchNorm1d(2).state_dict())
    add_one(engine, hosted)
    hosted.value.running_mean.fill_(7.0)
    assert state["weight"].tolist() == state["running_mean"].tolist() == [0.0, 0.0]
    assert not any(tensor.requires_grad for tensor in state.values())


def test_tied_parameters_stand_in_the_state_under_all_their_names(engine: Engine) -> None:
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    hosted = host(engine, tied)
    assert list(state_dicts.state_of(engine, hosted)) == ["0.weight", "1.weight"]


def test_a_parameter_that_is_fetched_is_a_copy(engine: Engine) -> None:
    hosted = host(engine, nn.Linear(2, 2))
    weight = calls.fetch(engine, hosted.ref._replace(parameter="weight"), Arguments(engine))
    add_one(engine, hosted)
    assert weight.unique().tolist() == [0.0]


@pytest.mark.parametrize(
    "change",
    [
        {"weight": torch.ones(3, 2)},
        {"weight": "text"},
        {"weight": torch.ones(2, 2, dtype=torch.complex64)},
        {"extra": torch.ones(1)},
        {"bias": None},
    ],
    ids=["shape", "kind", "dtype", "unknown", "none"],
)
def test_a_state_that_does_not_fit_changes_nothing(engine: Engine, change: dict[str, Any]) -> None:
    hosted = host(engine, nn.Linear(2, 2))
    state = {"weight": torch.ones(2, 2), "bias": torch.ones(2), **change}
    with pytest.raises(InvalidArgumentError):
        state_dicts.load_state_dict(engine, hosted.ref, state, strict=True)
    assert hosted.value.weight.unique().tolist() == hosted.value.bias.unique().tolist() == [0.0]


def test_loading_does_not_reach_an_open_pass(engine: Engine) -> None:
    hosted = host(engine, nn.Linear(2, 2))
    with engine.parameter_locks.reading(list(hosted.parameters.values()), hosted.parameter_states) as reading:
        state_dicts.load_state_dict(
            engine, hosted.ref, {"weight": torch.ones(2, 2), "bias": torch.ones(2)}, strict=True
        )
        assert [leaf.detach().unique().tolist() for leaf in reading.leaves] == [[0.0], [0.0]]
    assert hosted.value.weight.unique().tolist() == [1.0]
    assert [id(parameter) for parameter in hosted.value.parameters()] == [id(p) for p in hosted.parameters.values()]


def test_an_object_without_a_state_raises(engine: Engine) -> None:
    hosted = engine.registry.add(HostedObject(engine.name, [1, 2], engine.parameter_locks))
    with pytest.raises(InvalidArgumentError, match="has no state_dict"):
        state_dicts.state_of(engine, hosted)
    with pytest.raises(InvalidArgumentError, match="has no state to load"):
        state_dicts.load_state_dict(engine, hosted.ref, {}, strict=True)


def test_the_state_of_an_optimizer_is_none_of_a_module(engine: Engine) -> None:
    hosted = host(engine, nn.Linear(2, 2))
    state = torch.optim.SGD([torch.zeros(1)], lr=0.1).state_dict()
    with pytest.raises(
        InvalidArgumentError, match=r"looks like the state of an optimizer.*missing \['bias', 'weight'\]"
    ):
        state_dicts.load_state_dict(engine, hosted.ref, state, strict=True)


class Twice(nn.Module):
    """Reads its buffer twice, with a pause between if it is told so."""

    begun, go_on = threading.Event(), threading.Event()

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("scale", torch.ones(2))

    def forward(self, pauses: bool) -> tuple[torch.Tensor, torch.Tensor]:
        first = self.scale * self.weight.detach() + self.scale
        if pauses:
            self.begun.set()
            wait_for(self.go_on)
        return first, self.scale * self.weight.detach() + self.scale


def test_a_state_is_loaded_between_calls_that_read_buffers(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    hosted = host(engine, Twice())

    def forward(pauses: bool) -> tuple[torch.Tensor, torch.Tensor]:
        with CallFrame(engine.parameter_locks, True, recorded=False, grad=False, code="forward") as frame:
            module = frame.bind(hosted, is_target=True)
            found: tuple[torch.Tensor, torch.Tensor] = module(pauses)
            del module
            return found

    for _ in range(CLEAN_CALLS):
        forward(False)
    assert not hosted.views.running
    reading = Worker(lambda: forward(True))
    wait_for(Twice.begun)
    assert hosted.views.running, "on a view"
    waits, wait = threading.Event(), Views.await_views
    monkeypatch.setattr(Views, "await_views", lambda views: (waits.set(), wait(views)))
    state = Twice().state_dict() | {"scale": torch.full((2,), 5.0)}
    loading = Worker(lambda: state_dicts.load_state_dict(engine, hosted.ref, state, True))
    wait_for(waits)
    Twice.go_on.set()
    assert [each.tolist() for each in reading.result()] == [[1.0, 1.0]] * 2
    assert loading.result() == ([], [])
    assert forward(False)[0].tolist() == [5.0, 5.0]
