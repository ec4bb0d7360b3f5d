"""The gradients that torch's engine computes for an owner are those of `torch.autograd.grad`."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import get_gradient_edge
from torch.nn import Parameter

from ps_service.passes.records import gradients_of


def graph() -> tuple[torch.Tensor, list[Parameter]]:
    torch.manual_seed(0)
    parameters = [Parameter(torch.randn(3, 3)) for _ in range(3)]
    return (parameters[0] @ parameters[1]).tanh(), parameters


@pytest.mark.parametrize("retain_graph", [True, False])
def test_gradients_are_those_of_torch(retain_graph: bool) -> None:
    output, parameters = graph()
    seed = torch.randn(3, 3)
    wanted = torch.autograd.grad([output], parameters, [seed], retain_graph=True, allow_unused=True)
    found = gradients_of([get_gradient_edge(output)], parameters, [seed], retain_graph)
    assert found[2] is None and wanted[2] is None, "it was not reached"
    assert [torch.equal(*each) for each in zip(found[:2], wanted[:2], strict=True)] == [True, True]  # type: ignore[arg-type]
    assert all(parameter.grad is None for parameter in parameters)
    if not retain_graph:
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            gradients_of([get_gradient_edge(output)], parameters, [seed], retain_graph)


def test_gradients_of_nothing_are_refused() -> None:
    output, parameters = graph()
    with pytest.raises(RuntimeError, match="nothing whose gradient"):
        gradients_of([get_gradient_edge(output)], [], [torch.ones(3, 3)], False)
    assert all(parameter.grad is None for parameter in parameters)
