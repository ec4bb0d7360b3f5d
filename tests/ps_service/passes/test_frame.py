"""Tests the modules of a call, the parameters that its backward pins, and the results that are copied."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ps_service.engine import Engine
from ps_service.hosting.objects import HostedObject
from ps_service.hosting.references import RRef, binder
from ps_service.parameters.locks import COPY_AT_MOST
from ps_service.passes import calls, propagation
from ps_service.passes.arguments import Arguments, Invocation, Recording
from ps_service.passes.call_frame import CallFrame
from ps_service.training.creation import create_optimizer
from ps_wire.refs import CallKey, ContextId
from tests.ps_service.threads import Watched, Worker, wait_for


def host(engine: Engine, module: Any) -> HostedObject:
    return engine.registry.add(HostedObject(engine.name, module, engine.parameter_locks))


def call_frame(engine: Engine, training: bool | None = True, recorded: bool = True) -> CallFrame:
    return CallFrame(engine.parameter_locks, training, recorded, grad=recorded)


def saved(hosted: HostedObject) -> dict[str, int]:
    """How often each parameter was saved by open passes."""
    return {
        name: parameter_state.pin.saved
        for name, parameter_state in zip(hosted.parameters, hosted.parameter_states, strict=True)
    }


# What a call borrows


def test_a_call_borrows_a_module_once(engine: Engine) -> None:
    linear = host(engine, nn.Linear(2, 3))
    with call_frame(engine) as call:
        module = call.bind(linear)
        assert call.bind(linear) is module is linear.value
        assert [leaf.ref.parameter for leaf in call.leaves] == ["weight", "bias"]
        assert [leaf.parameter for leaf in call.leaves] == list(linear.value.parameters())
        assert [leaf.tensor for leaf in call.leaves] == list(module.parameters())
        assert linear.views is not None and linear.views.turns.holder is not None
    assert linear.views.turns.holder is None


@pytest.mark.parametrize("training", [True, False])
def test_modules_are_in_the_mode_of_the_call(engine: Engine, training: bool) -> None:
    with call_frame(engine, training=training) as call:
        assert call.bind(host(engine, nn.Linear(2, 3))).training is training


def test_other_code_sets_the_mode_of_a_module_for_later_calls(engine: Engine) -> None:
    net = host(engine, nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout())))

    def modes(is_target: bool, training: bool | None) -> list[bool]:
        with call_frame(engine, training) as call:
            return [each.training for each in call.bind(net, is_target).modules()]

    with call_frame(engine) as call:
        call.bind(net)[1].eval()
    assert modes(False, True) == modes(False, None) == modes(True, None) == [True, True, False, False]
    with call_frame(engine) as call:
        call.bind(net).eval()
    assert modes(False, True) == [False] * 4
    # A caller that chooses a mode for its call gets that one, and changes nothing.
    assert modes(True, True) == [True] * 4 and modes(False, False) == [False] * 4
    net.value.train()
    assert modes(False, True) == [True] * 4 and modes(True, False) == [False] * 4


@pytest.mark.parametrize("recorded", [True, False])
def test_torch_records_when_it_is_asked_to(engine: Engine, recorded: bool) -> None:
    linear = host(engine, nn.Linear(2, 3))
    with call_frame(engine, recorded=recorded) as call:
        assert torch.is_grad_enabled() is recorded
        assert call.bind(linear)(torch.ones(1, 2)).requires_grad is recorded
    assert torch.is_grad_enabled()


def test_everything_is_given_back_when_the_call_raises(engine: Engine) -> None:
    linear = host(engine, nn.Linear(2, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), call_frame(engine, recorded=False) as call:
        call.bind(linear)(torch.ones(1, 5))
    assert torch.is_grad_enabled()
    assert binder.get() is None
    assert linear.views is not None and linear.views.turns.holder is None
    with call_frame(engine) as call:
        call.bind(linear)(torch.ones(1, 2))


def test_hosted_code_sees_modules_and_parameters_through_its_handles(engine: Engine) -> None:
    linear = host(engine, nn.Sequential(nn.Linear(2, 3)))
    module, weight, plain = RRef.to(linear), RRef.to(linear, "0.weight"), RRef.to(host(engine, {"a": 1}))
    assert module.local_value() is linear.value
    assert weight.local_value() is linear.value[0].weight
    with call_frame(engine) as call:
        assert module.local_value() is call.bind(linear)
        assert weight.local_value() is call.bind(linear)[0].weight
        assert plain.local_value() == {"a": 1}
    assert module.local_value() is linear.value


# What a backward needs


@pytest.mark.parametrize(
    ("make", "x", "expected"),
    [
        (lambda: nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True), {"weight": 1, "bias": 0}),
        (lambda: nn.Linear(3, 3), torch.ones(2, 3), {"weight": 0, "bias": 0}),
        (lambda: nn.Conv1d(3, 3, 1), torch.ones(2, 3, 4, requires_grad=True), {"weight": 1, "bias": 0}),
        (lambda: nn.Embedding(3, 3), torch.tensor([0, 1]), {"weight": 0}),
        (lambda: nn.EmbeddingBag(3, 3, mode="sum"), torch.tensor([[0, 1]]), {"weight": 0}),
    ],
    ids=["linear", "linear at the bottom", "conv", "embedding", "embedding bag"],
)
def test_only_saved_parameters_are_pinned(engine: Engine, make: Any, x: torch.Tensor, expected: Any) -> None:
    hosted = host(engine, make())
    with call_frame(engine) as call:
        output = call.bind(hosted)(x)
    assert {name: bool(count) for name, count in saved(hosted).items()} == {k: bool(v) for k, v in expected.items()}
    before = {name: parameter.data_ptr() for name, parameter in hosted.parameters.items()}
    with engine.parameter_locks.writing(list(hosted.parameters.values()), hosted.parameter_states, consistent=True):
        pass
    moved = {name: parameter.data_ptr() != before[name] for name, parameter in hosted.parameters.items()}
    assert moved == {name: bool(count) for name, count in expected.items()}
    del output


def test_a_forward_that_is_not_recorded_pins_nothing(engine: Engine) -> None:
    linear = host(engine, nn.Linear(3, 3))
    with call_frame(engine, recorded=False) as call:
        output = call.bind(linear)(torch.ones(2, 3, requires_grad=True))
    assert saved(linear) == {"weight": 0, "bias": 0}
    assert not output.requires_grad


def test_a_view_of_a_parameter_pins_it_too(engine: Engine) -> None:
    linear = host(engine, nn.Linear(3, 3))
    with call_frame(engine) as call:
        rows = call.bind(linear).weight[:2]
        output = (rows * rows).sum()
    assert saved(linear) == {"weight": 2, "bias": 0}
    del rows, output
    gc.collect()
    assert saved(linear) == {"weight": 0, "bias": 0}


def test_parameters_that_share_storage_are_pinned_together(engine: Engine) -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.arange(4.0)
            self.left, self.right = nn.Parameter(whole[:2]), nn.Parameter(whole[2:])

    views = host(engine, Views())
    with call_frame(engine) as call:
        output = (call.bind(views).left ** 2).sum()
    assert all(saved(views).values())
    del output


def test_pins_go_when_a_backward_frees_the_graph(engine: Engine) -> None:
    linear = host(engine, nn.Linear(3, 3))
    x = torch.ones(2, 3, requires_grad=True)
    with call_frame(engine) as call:
        output = call.bind(linear)(x).sum()
    torch.autograd.grad(output, x, retain_graph=True)
    assert saved(linear)["weight"] == 1
    torch.autograd.grad(output, x)
    assert saved(linear)["weight"] == 0


def test_pins_go_with_the_outputs_of_a_pass_that_is_abandoned(engine: Engine) -> None:
    linear = host(engine, nn.Linear(3, 3))
    with call_frame(engine) as call:
        output = call.bind(linear)(torch.ones(2, 3, requires_grad=True))
    del call
    assert saved(linear)["weight"] == 1
    del output
    gc.collect()
    assert saved(linear)["weight"] == 0


def test_a_step_between_forward_and_backward_does_not_reach_the_open_pass(engine: Engine) -> None:
    linear = host(engine, nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        linear.value.weight.copy_(torch.tensor([[2.0, 3.0]]))
    x = torch.ones(1, 2, requires_grad=True)
    with call_frame(engine) as call:
        output = call.bind(linear)(x).sum()
    with (
        engine.parameter_locks.writing([linear.value.weight], linear.parameter_states, consistent=True),
        torch.no_grad(),
    ):
        linear.value.weight.mul_(100)
    (gradient,) = torch.autograd.grad(output, x)
    assert gradient.tolist() == [[2.0, 3.0]]


def test_buffers_may_change_between_forward_and_backward(engine: Engine) -> None:
    norm = host(engine, nn.BatchNorm1d(2))
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]], requires_grad=True)
    with call_frame(engine, training=False) as call:
        output = call.bind(norm)(x).sum()
    expected = torch.autograd.grad(F.batch_norm(x, torch.zeros(2), torch.ones(2)).sum(), x)
    norm.value.running_var.fill_(100.0)
    assert torch.equal(torch.autograd.grad(output, x)[0], expected[0])


def test_a_forward_that_overwrites_saved_tensors_raises(engine: Engine) -> None:
    class Spoils(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.exp()
            y.add_(1)
            return y

    x = torch.ones(2, requires_grad=True)
    with call_frame(engine) as call:
        output = call.bind(host(engine, Spoils()))(x).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(output, x)


# What leaves a call


class Reveals(nn.Module):
    """Returns what it should rather keep."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.register_buffer("seen", torch.zeros(4))


@pytest.mark.parametrize(
    "reveal",
    [
        lambda m: m.weight,
        lambda m: m.weight[:2],
        lambda m: m.seen,
        lambda m: m.seen.view(2, 2),
        lambda m: m.weight.data,
    ],
    ids=["parameter", "view", "buffer", "view of a buffer", "data"],
)
def test_a_result_in_the_memory_of_a_module_is_copied(engine: Engine, reveal: Any) -> None:
    hosted = host(engine, Reveals())
    with call_frame(engine) as call:
        (result,) = call.own([reveal(call.bind(hosted))])
    with torch.no_grad():
        hosted.value.weight.fill_(1.0)
        hosted.value.seen.fill_(1.0)
    assert not result.any()


def test_a_computed_result_is_not_copied_and_keeps_its_history(engine: Engine) -> None:
    hosted = host(engine, Reveals())
    with call_frame(engine) as call:
        weight = call.bind(hosted).weight
        doubled = weight * 2
        result = call.own({"computed": (doubled, "text"), "revealed": weight})
    assert result["computed"][0] is doubled
    assert result["computed"][1] == "text"
    (gradient,) = torch.autograd.grad(result["revealed"].sum(), weight)
    assert gradient.tolist() == [1.0] * 4


# Calls of several modules, and steps


class Nested(nn.Module):
    """Looks something up in a large table, and then uses another module."""

    looking_up, go_on = threading.Event(), threading.Event()

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(COPY_AT_MOST // 4 + 1, 1)

    def forward(self, ids: torch.Tensor, inner: RRef) -> torch.Tensor:
        found = self.table(ids)
        self.looking_up.set()
        wait_for(self.go_on)
        return inner.local_value()(found)


@pytest.mark.timeout(60)
def test_a_call_and_a_step_over_the_same_modules_do_not_wait_for_each_other(engine: Engine) -> None:
    engine.sessions.open(b"t" * 16)
    changed = engine.parameter_locks.changed = Watched(engine.parameter_locks.lock)
    outer, inner = host(engine, Nested()), host(engine, nn.Linear(1, 1))
    refs = [hosted.ref._replace(parameter=name) for hosted in (outer, inner) for name in hosted.parameters]
    optimizer, _ = create_optimizer(engine, "torch.optim.SGD", [(refs, {})], {"lr": 0.1})
    done, open_pass = ContextId(b"t" * 16, 1), ContextId(b"t" * 16, 2)
    Nested.go_on.set()
    _forward(engine, outer, inner, done)
    _backward(engine, done)
    for event in (Nested.looking_up, Nested.go_on):
        event.clear()
    call = Worker(lambda: _forward(engine, outer, inner, open_pass))
    wait_for(Nested.looking_up)
    step = Worker(lambda: optimizer.value.step(engine.contexts.find(done)))
    changed.seen()
    Nested.go_on.set()
    assert call.result().shape == (1, 1)
    assert step.result() == 1


@pytest.mark.timeout(60)
def test_a_step_does_not_keep_a_running_call_of_its_own_context_from_ending(engine: Engine) -> None:
    engine.sessions.open(b"t" * 16)
    changed = engine.parameter_locks.changed = Watched(engine.parameter_locks.lock)
    outer, inner = host(engine, Nested()), host(engine, nn.Linear(1, 1))
    refs = [outer.ref._replace(parameter=name) for name in outer.parameters]
    optimizer, _ = create_optimizer(engine, "torch.optim.SGD", [(refs, {})], {"lr": 0.1})
    context = ContextId(b"t" * 16, 1)
    Nested.go_on.set()
    _forward(engine, outer, inner, context)
    _backward(engine, context)
    for event in (Nested.looking_up, Nested.go_on):
        event.clear()
    call = Worker(lambda: _forward(engine, outer, inner, context, number=2))
    wait_for(Nested.looking_up)
    step = Worker(lambda: optimizer.value.step(engine.contexts.find(context)))
    changed.seen()
    Nested.go_on.set()
    call.result()
    assert step.result() == 1


def _forward(engine: Engine, outer: HostedObject, inner: HostedObject, context: ContextId, number: int = 1) -> Any:
    arguments = Arguments(engine, context)
    args = (torch.tensor([1]), arguments.handle(inner.ref.to_message()))
    recording = Recording(context, CallKey(context.trainer, number))
    return calls.call(engine, outer, "", Invocation(arguments, args, {}, True, recording))


def _backward(engine: Engine, context: ContextId) -> None:
    propagation.backward(engine, context, CallKey(context.trainer, 1), [0], [torch.ones(1, 1)], retain_graph=False)
