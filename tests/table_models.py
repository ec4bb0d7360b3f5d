"""Hosted classes that look up in tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

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
    def in_threads(self, ids: torch.Tensor) -> torch.Tensor:
        """Look-ups in threads that have no part in the call."""
        with ThreadPoolExecutor(1) as pool:
            return self.head(torch.cat([*pool.map(self.items, ids)]))

    @remote
    def checkpointed(self, ids: torch.Tensor) -> torch.Tensor:
        """A look-up that is made again in the backward."""
        return checkpoint(lambda again: self.head(self.items(again).detach()), ids, use_reentrant=False)

    @remote
    def propagated(self, ids: torch.Tensor) -> torch.Tensor:
        """A backward of its own onto the rows."""
        self.items(ids).sum().backward()
        return self.forward(ids)

    @remote
    def returned(self) -> TableRef | None:
        """What cannot be sent."""
        return self.items


@hosted
class Begun(Scored):
    """Looks up before any call."""

    def __init__(self, items: TableRef, dim: int) -> None:
        super().__init__(items, dim)
        with torch.no_grad():
            self.first = items(torch.arange(2))


@hosted
class Pooling(nn.Module):
    """The pooled rows of bags."""

    def __init__(self, items: TableRef) -> None:
        super().__init__()
        self.items = items

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor, mode: str) -> torch.Tensor:
        return self.items.bag(ids, offsets, mode)


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
