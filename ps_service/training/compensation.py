"""Delay compensation: corrects stale gradients with the parameters that they were computed with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

from ps_service.policies.rules import OLDEST_COMPENSATED
from ps_service.tables.stand_in import AllRows
from ps_wire.errors import InvalidArgumentError
from ps_wire.policies import Compensate, Policy


class ParameterHistory:
    """Copies of the parameters at the last versions of their optimizer.

    Args:
        parameters: The parameters.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self._copies: OrderedDict[int, list[torch.Tensor]] = OrderedDict()

    def keep(self, version: int) -> None:
        """Copies the parameters as they are now, as those of a version. Forgets versions that are too old."""
        if version not in self._copies:
            self._copies[version] = [each.detach().clone() for each in self._parameters]
        while len(self._copies) > OLDEST_COMPENSATED + 1:
            self._copies.popitem(last=False)

    def compensated(
        self, gradients: Sequence[torch.Tensor | None], read: int, strength: float
    ) -> list[torch.Tensor | None]:
        """The gradients g + strength * g * g * (now - then), elementwise.

        Args:
            gradients: The gradient of each parameter.
            read: The version that they were computed with. If it is not kept, they are returned as they are: they are
                from before the policy was set.
            strength: Strength of the correction.
        """
        then = self._copies.get(read)
        if then is None:
            return list(gradients)
        return [
            None if gradient is None else _compensated(gradient, parameter.detach(), old, strength)
            for gradient, parameter, old in zip(gradients, self._parameters, then, strict=True)
        ]


def _compensated(gradient: torch.Tensor, now: torch.Tensor, then: torch.Tensor, strength: float) -> torch.Tensor:
    if not gradient.is_sparse:
        return gradient + strength * gradient * gradient * (now - then)
    rows = gradient.coalesce()
    index, values = rows.indices(), rows.values()
    moved = now[tuple(index)] - then[tuple(index)]
    return torch.sparse_coo_tensor(
        index, values + strength * values * values * moved, rows.shape, is_coalesced=True, check_invariants=False
    )


def check_policy(policy: Policy, parameters: Sequence[torch.Tensor]) -> None:
    """Checks that the gradients of some parameters can be treated as a policy says.

    Raises:
        InvalidArgumentError: It compensates gradients, and a parameter stands for the rows of a table.
    """
    tables = any(isinstance(each, AllRows) for each in parameters)
    if tables and isinstance(getattr(policy, "stale", None), Compensate):
        raise InvalidArgumentError("gradients of tables cannot be compensated, because no earlier rows are kept")
