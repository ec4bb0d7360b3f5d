"""Hosted classes that look up in tables."""

from __future__ import annotations

import torch
from torch import nn

from ps_service import TableRef, async_execution, hosted, remote


@hosted
class Scored(nn.Module):
    """Scores of ids, by the rows of a table, or by tensors in their place."""

    def __init__(self, items: TableRef | None, dim: int) -> None:
        super().__init__()
        self.items, self.head = items, nn.Linear(dim, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.items(ids))

    @remote
    def of_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """What forward computes, with rows that the caller has looked up."""
        return self.head(rows)

    @remote
    def pooled(
        self, ids: torch.Tensor, offsets: torch.Tensor, mode: str, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same of bags."""
        return self.head(self.items.bag(ids, offsets, mode, weights))

    @remote
    def twice(self, ids: torch.Tensor, more: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Two look-ups, and rows of the caller."""
        return self.head(self.items(ids)).sum() + 3 * self.head(self.items(more)).sum() + 5 * self.head(rows).sum()

    @remote
    def without_grad(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows that no gradient reaches."""
        with torch.no_grad():
            rows = self.items(ids)
        return self.head(rows)

    @remote
    def given(self, items: TableRef, ids: torch.Tensor) -> torch.Tensor:
        """The same with a table of this call alone."""
        return self.head(items(ids))

    @remote
    def returned(self) -> TableRef | None:
        """What cannot be sent."""
        return self.items


@remote
def rows_of(items: TableRef, ids: torch.Tensor) -> torch.Tensor:
    """A function that looks up."""
    return items(ids) * 2


LATER: list[tuple[torch.futures.Future[torch.Tensor], torch.Tensor]] = []
"""Futures of `later`, which tests set, and their results."""


@remote
@async_execution
def later(items: TableRef, ids: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """The same function, which answers later."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    LATER.append((future, rows_of(items, ids)))
    return future
