"""Tests that torch's fused kernels get gradients in the layout of the parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ps_service.engine import Engine
from ps_service.hosting.objects import HostedObject
from ps_service.passes import calls, propagation
from ps_service.passes.arguments import Arguments, Invocation, Recording
from ps_service.training.creation import create_optimizer
from ps_wire.refs import CallKey, ContextId


class Product(nn.Module):
    """Gives its weight a gradient whose strides are those of the transposed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).view(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bi,oi->bo", x, self.weight)


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
def test_a_fused_step_with_a_transposed_gradient_equals_the_local_one(engine: Engine, cls: Any) -> None:
    engine.sessions.open(b"t" * 16)
    local, x = Product(), torch.randn(4, 3)
    hosted = engine.registry.add(HostedObject(engine.name, Product(), engine.parameter_locks))
    refs = [hosted.ref._replace(parameter="weight")]
    name = f"torch.optim.{cls.__name__}"
    optimizer, _ = create_optimizer(engine, name, [(refs, {})], {"lr": 0.1, "fused": True})
    expected = cls(local.parameters(), lr=0.1, fused=True)
    for step in range(3):
        context, key = ContextId(b"t" * 16, step + 1), CallKey(b"t" * 16, 1)
        asked = Invocation(Arguments(engine, context), (x,), {}, True, Recording(context, key))
        calls.call(engine, hosted, "", asked)
        propagation.backward(engine, context, key, [0], [torch.ones(4, 2)], retain_graph=False)
        optimizer.value.step(engine.contexts.find(context))
        engine.contexts.end(context)
        expected.zero_grad()
        local(x).sum().backward()
        expected.step()
    assert torch.equal(hosted.value.weight, local.weight)
