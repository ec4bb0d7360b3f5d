"""Tests that backwards without torch's checks do what `torch.autograd.backward` does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.autograd.graph import GradientEdge
from torch.overrides import TorchFunctionMode

from trainer_client.graph.engine import propagate, propagate_from

Loss = Callable[[torch.Tensor], torch.Tensor]

LOSSES: dict[str, Loss] = {
    "scalar": lambda x: (x * x).sum(),
    "one element": lambda x: (x * x).sum().reshape(1, 1),
    "half": lambda x: (x * x).sum().to(torch.bfloat16),
    "several elements": lambda x: x * x,
    "complex": lambda x: (x * x).sum().to(torch.complex64),
    "constant": lambda x: torch.ones(1),
}


def gradient_of(run: Callable[..., None], loss: Loss) -> torch.Tensor | str | None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    try:
        run((loss(x),), None, False)
    except RuntimeError as error:
        return str(error)
    return x.grad


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_and_errors_are_those_of_torch(name: str) -> None:
    found, wanted = (gradient_of(run, LOSSES[name]) for run in (propagate, torch.autograd.backward))
    if isinstance(found, torch.Tensor):
        assert torch.equal(found, wanted)
    elif name == "constant":
        # What torch says, and where calls are recorded.
        assert str(found).startswith(f"{wanted}. Remote calls are recorded inside the block of a context only")
    else:
        assert found == wanted


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        self.names: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


def test_a_mode_of_the_program_sees_it() -> None:
    loss = LOSSES["scalar"](torch.ones(2, requires_grad=True))
    with Seen() as seen:
        propagate((loss,), None, False)
    assert "backward" in seen.names


def test_it_ends_at_given_nodes() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    end = torch.autograd.graph.get_gradient_edge(y)
    propagate(((x * y).sum(),), None, False, [end])
    assert x.grad is None and y.grad is not None and y.grad.tolist() == [1.0, 1.0]


def test_gradients_that_came_from_elsewhere_go_on() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    assert y.grad_fn is not None
    propagate_from([GradientEdge(y.grad_fn, 0)], [torch.tensor([1.0, 10.0])], False)
    assert x.grad is not None and x.grad.tolist() == [2.0, 40.0]
