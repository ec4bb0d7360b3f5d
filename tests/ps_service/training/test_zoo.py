"""Tests that recorded calls, backwards and steps of many modules equal those of local torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ps_service.engine import Engine
from ps_service.hosting.objects import HostedObject
from ps_service.passes import calls, propagation
from ps_service.passes.arguments import Arguments, Invocation, Recording
from ps_service.training import state_dicts
from ps_service.training.creation import create_optimizer
from ps_wire.codec.trees import mapped, tensors_in
from ps_wire.refs import CallKey, ContextId
from tests.ps_service.zoo import ZOO, born, fed

STEPS = 2


@pytest.mark.parametrize("name", ZOO)
def test_a_module_trains_as_it_does_locally(engine: Engine, name: str) -> None:
    engine.sessions.open(b"t" * 16)
    local = born(name)
    hosted = engine.registry.add(HostedObject(engine.name, born(name), engine.parameter_locks))
    refs = [hosted.ref._replace(parameter=each) for each in hosted.parameters]
    optimizer, _ = create_optimizer(engine, "torch.optim.SGD", [(refs, {})], {"lr": 0.05})
    local_optimizer = torch.optim.SGD(local.parameters(), lr=0.05)
    for step in range(STEPS):
        context = ContextId(b"t" * 16, step + 1)
        outputs, of_inputs = train_hosted(engine, hosted, context, wanting(fed(name, step)))
        assert optimizer.value.step(engine.contexts.find(context)) == step + 1
        engine.contexts.end(context)
        expected, expected_of_inputs = train_local(local, wanting(fed(name, step)))
        local_optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))
        for a, b in zip(of_inputs, expected_of_inputs, strict=True):
            torch.testing.assert_close(a, b)
    state, expected_state = state_dicts.state_of(engine, hosted), local.state_dict()
    assert list(state) == list(expected_state)
    for key, value in expected_state.items():
        torch.testing.assert_close(state[key], value, msg=key)
    assert all(
        parameter_state.pin.saved == parameter_state.pin.reading == 0 for parameter_state in hosted.parameter_states
    ), "no pin outlives its context"


def wanting(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return mapped(args, lambda tensor: tensor.requires_grad_() if tensor.is_floating_point() else tensor)


def weights_of(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.linspace(-1, 1, output.numel()).view(output.shape) for output in outputs]


def train_hosted(
    engine: Engine, hosted: HostedObject, context: ContextId, args: tuple[Any, ...]
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """The outputs of a call, and the gradients of its inputs."""
    key = CallKey(context.trainer, 1)
    arguments = Arguments(engine, context)
    args = mapped(args, lambda tensor: arguments.tensor(tensor.detach(), tensor.requires_grad))
    result = calls.call(engine, hosted, "", Invocation(arguments, args, {}, True, Recording(context, key)))
    places = [place for place, output in enumerate(tensors_in(result)) if output.requires_grad]
    outputs = [list(tensors_in(result))[place] for place in places]
    of_inputs = propagation.backward(engine, context, key, places, weights_of(outputs), retain_graph=False)
    return outputs, of_inputs


def train_local(module: nn.Module, args: tuple[Any, ...]) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    module.zero_grad()
    outputs = [output for output in tensors_in(module(*args)) if output.requires_grad]
    torch.autograd.backward(outputs, weights_of(outputs))
    return outputs, [each.grad for each in tensors_in(args) if each.requires_grad]
