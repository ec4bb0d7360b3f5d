"""The gradients of one round: the weighted sum of what several trainers have offered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from ps_service.memory.held import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.parameters.state import ParameterState
    from ps_service.passes.pass_context import PassContext
    from ps_service.passes.staleness import FirstReadings
    from ps_service.training.reported_values import Report
    from ps_wire.attempts import Attempt

Optional = torch.Tensor | None


class Contribution(NamedTuple):
    """What one trainer offers: a gradient for each parameter that the optimizer covers, or None where there is none;
    and the pass that they are from, or what a replica has read, None if they are from neither."""

    gradients: Sequence[Optional]
    context: PassContext | FirstReadings | None
    report: Report | None = None
    attempt: Attempt | None = None

    @property
    def nbytes(self) -> int:
        """The memory of the gradients."""
        return sum(size(each) for each in self.gradients if each is not None)


class Term(NamedTuple):
    """A contribution in a round, and what its gradients are multiplied with."""

    contribution: Contribution
    weight: float


@dataclass(slots=True, eq=False)
class RoundGradients:
    """The gradients of a round, as a step takes them: the sum of the terms, divided by `divisor`. The order of the
    terms must not depend on when they came. `last_staleness` is the largest that the step has found."""

    _terms: Sequence[Term]
    _divisor: int
    last_staleness: int = 0

    @property
    def attempt(self) -> Attempt | None:
        """Which steps other attempts of a push have applied, for a push that is a round by itself."""
        return self._terms[0].contribution.attempt if len(self._terms) == 1 else None

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts that gradients are from."""
        return [each for term in self._terms if (each := term.contribution.attempt) is not None]

    @property
    def gradient_bytes(self) -> int:
        """The bytes of the gradients of one trainer, of which a step has as many."""
        first = self._terms[0].contribution.gradients if self._terms else ()
        return sum(each.nbytes for each in first if each is not None and not each.is_sparse)

    def gradients_of(self, parameters: Sequence[torch.Tensor]) -> list[Optional]:
        """The sum for each parameter; None where no trainer has a gradient. A trainer without one adds nothing."""
        return [self._sum(position, parameter.dtype) for position, parameter in enumerate(parameters)]

    def stepped(self, parameters: Sequence[torch.Tensor], parameter_states: Sequence[ParameterState]) -> int | None:
        """Notes the step in the passes of all trainers, and returns the largest staleness."""
        worst = None
        for term in self._terms:
            context = term.contribution.context
            staleness = None if context is None else context.stepped(parameters, parameter_states)
            if staleness is not None:
                worst = max(worst or 0, staleness)
        self.last_staleness = worst or 0
        return worst

    def passed(self, optimizer: int, applied: bool, version: int) -> None:
        """The step of an optimizer to a version is over; `applied` says whether it has changed something."""
        for term in self._terms:
            if (attempt := term.contribution.attempt) is not None:
                attempt.passed(optimizer, applied, version)

    def _sum(self, position: int, dtype: torch.dtype) -> Optional:
        total: Optional = None
        for contribution, weight in self._terms:
            gradient = contribution.gradients[position]
            if gradient is not None:
                total = added(total, gradient, weight)
        if total is None:
            return None
        if self._divisor != 1:
            total = total / self._divisor
        return total if total.dtype == dtype else total.to(dtype)


def added(total: Optional, gradient: torch.Tensor, weight: float) -> torch.Tensor:
    """The sum of a total and a weighted gradient. Neither is changed: a gradient may still belong to its pass. A sum
    of float16 or bfloat16 gradients is float32, so that a mean is exact and does not overflow on the way; one of sparse
    and dense gradients is dense."""
    if total is None and weight == 1.0:
        return gradient
    weighted = _wide(gradient) if weight == 1.0 else _wide(gradient) * weight
    if total is None:
        return weighted
    if total.is_sparse and not weighted.is_sparse:
        return weighted + _wide(total)  # torch adds sparse tensors to dense ones only
    return _wide(total) + weighted


def added_to_each(totals: Sequence[Optional] | None, gradients: Sequence[Optional], weight: float) -> list[Optional]:
    """The sums for all parameters with the gradients of one more trainer. A sum may be its gradient itself."""
    before: Sequence[Optional] = totals or [None] * len(gradients)
    return [
        total if gradient is None else added(total, gradient, weight)
        for total, gradient in zip(before, gradients, strict=True)
    ]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
