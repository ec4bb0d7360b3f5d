"""Delay compensation: corrects stale gradients with the parameters that they were computed with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

from ps_service.policies.rules import OLDEST_COMPENSATED
from ps_service.tables.backups import RowBackups
from ps_service.tables.row_gradients import rows_gradient
from ps_service.tables.stand_in import AllRows, summed_rows


class ParameterHistory:
    """The parameters at the last versions of their optimizer.

    Of a parameter, copies are kept; of the rows of a table, copies of those that the steps between have changed.

    Args:
        parameters: The parameters.
        strength: Strength of the correction.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], strength: float) -> None:
        self._strength = strength
        self._parameters = parameters
        self._backups = [RowBackups(each.table) if isinstance(each, AllRows) else None for each in parameters]
        self._copies: OrderedDict[int, list[torch.Tensor | None]] = OrderedDict()

    def keep(self, version: int) -> None:
        """Keeps the parameters as they are now, as those of a version. Forgets versions that are too old."""
        if version not in self._copies:
            self._copies[version] = [
                None if isinstance(each, AllRows) else each.detach().clone() for each in self._parameters
            ]
            for backups in filter(None, self._backups):
                backups.end(version)
        while len(self._copies) > OLDEST_COMPENSATED + 1:
            self._copies.popitem(last=False)
        for backups in filter(None, self._backups):
            backups.forget(next(iter(self._copies)))

    def compensated(self, gradients: Sequence[torch.Tensor | None], read: int) -> list[torch.Tensor | None]:
        """The gradients g + strength * g * g * (now - then), elementwise.

        Args:
            gradients: The gradient of each parameter.
            read: The version that they were computed with. If it is not kept, they are returned as they are: they are
                from before the policy was set.
        """
        if read not in self._copies:
            return list(gradients)
        return [
            None if gradient is None else self._compensated(position, gradient, read)
            for position, gradient in enumerate(gradients)
        ]

    def _compensated(self, position: int, gradient: torch.Tensor, read: int) -> torch.Tensor:
        strength, backups = self._strength, self._backups[position]
        if backups is not None:
            keys, rows = summed_rows(gradient)
            return rows_gradient(keys, rows + strength * rows * rows * backups.moved(keys, read))
        now, then = self._parameters[position].detach(), self._copies[read][position]
        assert then is not None
        if not gradient.is_sparse:
            return gradient + strength * gradient * gradient * (now - then)
        sparse = gradient.coalesce()
        index, values = sparse.indices(), sparse.values()
        moved = now[tuple(index)] - then[tuple(index)]
        return torch.sparse_coo_tensor(
            index, values + strength * values * values * moved, sparse.shape, is_coalesced=True, check_invariants=False
        )
