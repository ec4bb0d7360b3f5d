"""Parameters on an owner, optimizers of them, and contexts with gradients for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import optim
from torch.nn import Parameter

from ps_service.memory.held import Held
from ps_service.parameters.locks import ParameterLocks
from ps_service.passes.gradients import Gradient
from ps_service.passes.pass_context import PassContext
from ps_service.training.optimizers import Covered, HostedOptimizer
from ps_wire.refs import ContextId, Ref

SHAPES = ((2, 3), (3,), (4, 2))


class Owner:
    """Some parameters, and optimizers of them."""

    def __init__(self, shapes: Sequence[tuple[int, ...]] = SHAPES) -> None:
        torch.manual_seed(0)
        self.parameter_locks = ParameterLocks()
        self.parameters = [Parameter(torch.randn(shape)) for shape in shapes]
        self.covered = [
            Covered(Ref("ps0", "0" * 32, f"p{number}"), parameter, self.parameter_locks.state(parameter))
            for number, parameter in enumerate(self.parameters)
        ]

    def optimizer(
        self,
        cls: type[optim.Optimizer],
        groups: Sequence[tuple[Sequence[int], Mapping[str, Any]]] | None = None,
        consistent: bool = True,
        refuses_non_finite: bool = False,
        **options: Any,
    ) -> HostedOptimizer:
        chosen = groups or [(range(len(self.parameters)), {})]
        described = [([self.covered[i] for i in members], own) for members, own in chosen]
        return HostedOptimizer(cls, described, options, consistent, refuses_non_finite, self.parameter_locks)

    def context(self, gradients: Mapping[int, torch.Tensor], number: int = 1) -> PassContext:
        context = PassContext(ContextId(b"t" * 16, number), Held())
        context.accumulate([Gradient(self.covered[i].ref, self.parameters[i], g) for i, g in gradients.items()])
        return context

    def gradients(self, seed: int) -> dict[int, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {i: torch.randn(p.shape, generator=generator) for i, p in enumerate(self.parameters)}

    @property
    def numbers(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters]


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def assert_same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["param_groups"] == other["param_groups"]
    assert one["state"].keys() == other["state"].keys()
    for index, entries in one["state"].items():
        assert entries.keys() == other["state"][index].keys()
        for key, value in entries.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other["state"][index][key]))
