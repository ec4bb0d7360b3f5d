"""The gradients of an open round whose trainers have gone on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ps_service.training.reported_values import Tally
from ps_service.training.round_gradients import Contribution, Term, added_to_each

if TYPE_CHECKING:
    import torch

    from ps_service.training.reported_values import Report, ReportedValues
    from ps_service.training.round_journal import PooledReport


class Pool:
    """Their weighted sum, None if there is none, and the values that came with them. Those that came before this owner
    has started are kept as `reports`, too. For one thread at a time."""

    def __init__(self, reported: ReportedValues) -> None:
        self.total: Sequence[torch.Tensor | None] | None = None
        self.values = Tally()
        self.reports: list[PooledReport] = []
        self._reported = reported

    def sum_with(self, gradients: Sequence[torch.Tensor | None], weight: float) -> Sequence[torch.Tensor | None]:
        """The sum with the gradients of one more trainer."""
        return added_to_each(self.total, gradients, weight)

    def add(self, report: Report | None) -> None:
        """Adds the values that came with a gradient."""
        self._reported.pool(self.values, report)

    def terms(self) -> list[Term]:
        """What a step with them takes."""
        return [] if self.total is None else [Term(Contribution(self.total, None), 1.0)]

    def restore(self, total: Sequence[torch.Tensor | None] | None, reports: Sequence[PooledReport]) -> None:
        """Has these in the place of what it has."""
        self._reported.drop_pool(self.values)
        self.total, self.values, self.reports = total, Tally(), []
        for each in reports:
            self.add_again(each)

    def add_again(self, report: PooledReport) -> None:
        """Adds the values that had come with a gradient before this owner has started."""
        self.add(self._reported.expect(report.trainer, report.values))
        self.reports.append(report)
