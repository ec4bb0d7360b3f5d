"""Groups of rows with options of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch

from ps_service.tables.rules import Rates
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.options import check_groups

if TYPE_CHECKING:
    from ps_wire.tables.options import RowGroup, RowOptimizer


class Groups:
    """Ranges of ids that have options of their own.

    Learning rates of groups keep their ratio to that of the table, as torch's schedulers scale that of each group of
    parameters. The ratio is to the one that the table was made with, so nothing but options has to be kept. To 0 there
    is no ratio: the rates of groups of a table that was made with 0 stay as they are.

    Raises `InvalidArgumentError` if ranges overlap, or their options do not fit the optimizer.
    """

    def __init__(self, groups: Sequence[RowGroup], optimizer: RowOptimizer) -> None:
        check_groups(optimizer, groups)
        self._base: Final = optimizer.lr
        self.groups: Final = sorted(groups, key=lambda group: group.low)
        for one, next_one in zip(self.groups, self.groups[1:], strict=False):
            if next_one.low <= one.high:
                raise InvalidArgumentError(f"two groups of rows overlap: {one} and {next_one}")
        self._lows: Final = torch.tensor([group.low for group in self.groups], dtype=torch.int64)
        self._highs: Final = torch.tensor([group.high for group in self.groups], dtype=torch.int64)

    def rates(self, ids: torch.Tensor, lr: float, weight_decay: float) -> Rates:
        """Learning rate and weight decay of ids, int64 [n]: numbers, or float32 [n, 1] where there are groups.

        `lr` and `weight_decay` are those of rows without a group, or whose group has none, as they are now.
        """
        if not self.groups:
            return Rates(lr, weight_decay)
        group = torch.searchsorted(self._lows, ids, right=True) - 1
        group = torch.where((group >= 0) & (ids <= self._highs[group]), group, -1)
        # The last of these numbers, with the index -1, is for rows without a group.
        scale = lr / self._base if self._base else 1.0
        lrs = [lr if each.lr is None else each.lr * scale for each in self.groups]
        decays = [weight_decay if each.weight_decay is None else each.weight_decay for each in self.groups]
        return Rates(torch.tensor([*lrs, lr])[group][:, None], torch.tensor([*decays, weight_decay])[group][:, None])
