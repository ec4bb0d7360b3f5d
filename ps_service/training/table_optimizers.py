"""Optimizers of tables, shared by all trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_service.tables.stand_in import AllRows
from ps_service.training.optimizers import HostedOptimizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ps_service.tables.optimizer import RowOptimizer
    from ps_service.training.optimizers import Covered, Present


class HostedTableOptimizer(HostedOptimizer):
    """A `RowOptimizer` over tables of this owner, which checks what it is given."""

    optimizer: RowOptimizer

    def _check_options(self, groups: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        super()._check_options(groups, options)
        self.optimizer.check_options(options)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        super()._check_state(state)
        self.optimizer.check_groups(state["param_groups"])

    def _check_layouts(self, present: Sequence[Present]) -> None:
        """Refuses options that a scheduler has written, and tables do not take; they take every gradient."""
        self.optimizer.check_step()

    def _name(self, covered: Covered) -> str:
        assert isinstance(covered.parameter, AllRows)
        return str(covered.parameter.table)
