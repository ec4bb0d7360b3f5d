"""A hosted module whose calls run on views, with forwards, backwards and steps as an owner makes them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import nn

from ps_service.hosting import views
from ps_service.hosting.leaves import Leaf
from ps_service.hosting.objects import HostedObject
from ps_service.parameters.locks import ParameterLocks
from ps_service.passes.call_frame import CallFrame
from ps_service.passes.pass_values import PassValues
from ps_service.training.step_access import StepAccess

RATE = 0.01


class Forward(NamedTuple):
    """What a recorded call has computed.

    Attributes:
        result: Its result.
        leaves: The leaves of the parameters.
        steps: The number of steps of the parameters when it began.
        values: The values that code of the module finds in the backward.
    """

    result: torch.Tensor
    leaves: Sequence[Leaf]
    steps: int
    values: Sequence[PassValues]

    def backward(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        """The gradients of the parameters; zeros for those that are not used."""
        leaves = [each.tensor for each in self.leaves]
        with ExitStack() as stack:
            for each in self.values:
                stack.enter_context(each.found())
            found = torch.autograd.grad(self.result, leaves, gradient, allow_unused=True)
        return [torch.zeros_like(each) if g is None else g for each, g in zip(leaves, found, strict=True)]


class Viewed:
    """A hosted module after its first calls.

    Args:
        module: The module.
        args: Arguments of these calls.
        training: The mode of all calls.
        locks: The locks of the parameters, if other modules have the same; None for new ones.

    Attributes:
        history: The values of the parameters after each number of steps.
    """

    def __init__(
        self, module: nn.Module, *args: torch.Tensor, training: bool = True, locks: ParameterLocks | None = None
    ) -> None:
        self.locks = locks or ParameterLocks()
        self.hosted = HostedObject("ps0", module, self.locks)
        self.parameters = list(module.parameters())
        self._training = training
        self._stepping = threading.Lock()
        self.history: dict[int, list[torch.Tensor]] = {}
        self._remember()
        for _ in range(views.CLEAN_CALLS if args else 0):
            self.forward(*args)

    def _remember(self) -> None:
        self.history[self.steps] = [each.detach().clone() for each in self.parameters]

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return self.hosted.parameter_states[0].steps

    @property
    def has_views(self) -> bool:
        """Whether calls have run on views."""
        return self.hosted.views.leaf_of(self.hosted.parameter_states[0]) is not None

    def forward(self, *args: torch.Tensor, code: str = "forward") -> Forward:
        """Runs a method as a recorded call."""
        with CallFrame(self.locks, self._training, recorded=True, code=code) as frame:
            module = frame.bind(self.hosted, is_target=True)
            result = frame.own(getattr(module, code)(*args) if code != "forward" else module(*args))
            del module
        return Forward(result, frame.leaves, frame.steps[0], frame.values)

    def step(self, gradients: Sequence[torch.Tensor] | None = None) -> list[bool]:
        """Subtracts gradients, or halves the parameters; returns which of them it has moved to other memory."""
        states = self.hosted.parameter_states
        with self._stepping:
            before = [each.data_ptr() for each in self.parameters]
            with StepAccess(self.locks, self.parameters, states, consistent=True), torch.no_grad():
                for i, parameter in enumerate(self.parameters):
                    parameter.mul_(0.5) if gradients is None else parameter.sub_(gradients[i], alpha=RATE)
                for state in states:
                    state.steps += 1
                self._remember()
            return [each.data_ptr() != place for each, place in zip(self.parameters, before, strict=True)]


def expected(
    reference: nn.Module, values: list[torch.Tensor], ids: torch.Tensor, gradient: torch.Tensor
) -> list[torch.Tensor]:
    """The gradients that torch computes with these values of the parameters."""
    parameters = list(reference.parameters())
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data = value.clone()
    found = torch.autograd.grad(reference(ids), parameters, gradient, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
