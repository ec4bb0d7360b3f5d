"""The interface of the implementations, and which one is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from ps_service.tables import compiled
from ps_service.tables.kernels.plain import PlainKernels

if TYPE_CHECKING:
    from ps_service.tables.kernels.grouped import Grouped
    from ps_service.tables.optimizers import Rates
    from ps_service.tables.rows import Rows


class Kernels(Protocol):
    """What is computed with ids and rows. Arguments have been checked.

    Attributes:
        implementation: "numba" or "torch".
    """

    implementation: str

    def unique(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The different ids, and for each id its position among them.

        Args:
            ids: int64 [n].

        Returns:
            int64 [m] in an order of the implementation, and int64 [n] with `different[inverse] == ids`.
        """

    def group(
        self,
        ids: torch.Tensor,
        gradients: torch.Tensor,
        offsets: torch.Tensor | None = None,
        scales: torch.Tensor | None = None,
    ) -> Grouped:
        """Puts the gradients of equal ids together.

        Args:
            ids: int64 [n].
            gradients: float32 [k, dim].
            offsets: Where each of k bags of ids begins, int64 [k], whose ids have its gradient; None if k is n, and
                each id has its own.
            scales: A factor for each id, float32 [n]; None for 1.
        """

    def sum(self, grouped: Grouped) -> torch.Tensor:
        """The sums of the gradients of each id, in the order in which they were given, float32 [m, dim]."""

    def begin(self, rows: Rows, numbers: torch.Tensor, ids: torch.Tensor, fresh: bool) -> None:
        """Writes the first values of rows.

        Args:
            rows: The rows.
            numbers: Which ones, int64 [n]; they differ.
            ids: Their ids, int64 [n].
            fresh: Whether none of them was used before.
        """

    def read(self, rows: Rows, numbers: torch.Tensor) -> torch.Tensor:
        """Copies of rows, [n, dim] of their dtype.

        Args:
            rows: The rows.
            numbers: Which ones, int64 [n]: all of them are there.
        """

    def update(self, rows: Rows, numbers: torch.Tensor, grouped: Grouped, rates: Rates) -> None:
        """Applies gradients with one step of the rows' optimizer.

        Args:
            rows: The rows.
            numbers: The rows of the ids of `grouped`, int64 [m].
            grouped: The gradients.
            rates: Learning rate and weight decay.
        """

    def pool(
        self, rows: Rows, numbers: torch.Tensor, offsets: torch.Tensor, mode: str, weights: torch.Tensor | None
    ) -> torch.Tensor:
        """Pools rows.

        Args:
            rows: The rows.
            numbers: The row of each position, int64 [n].
            offsets: Where each bag begins, int64 [bags].
            mode: "sum" or "mean".
            weights: float32 [n], with "sum" only.

        Returns:
            float32 [bags, dim].
        """


def make_kernels(implementation: str | None = None) -> Kernels:
    """The kernels.

    Args:
        implementation: "numba" or "torch"; None for the first that is installed.
    """
    if implementation == "torch" or (implementation is None and not compiled.available()):
        return PlainKernels()
    from ps_service.tables.kernels.fast import NumbaKernels

    return NumbaKernels()
