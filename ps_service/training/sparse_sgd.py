"""SGD with `fused=True` on a few rows of a large table, which torch itself does not offer.

`torch.optim.SGD` adds a sparse gradient with one BLAS call per row, and for the rows of an embedding the calls
themselves take much of the time. Its fused step refuses sparse gradients. Here one torch operation scatters the scaled
rows. Duplicate rows are added in the same order. Products are rounded before they are added, so a result may differ in
its last bit from the step without `fused`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import optim

from ps_wire.limits import MIB

_BLOCK_BYTES: Final = 512 * 1024
"""Bytes of rows that are stepped at a time: they and their gradients stay in a core's cache."""

_CACHED_BYTES: Final = 16 * MIB
"""Tables up to this size are in the caches after the backward."""

_SUM: Final = 0
"""The mode of `torch.embedding_bag` that adds."""


def can_apply(optimizer: optim.Optimizer, group: Mapping[str, Any], gradient: torch.Tensor) -> bool:
    """Whether `apply` can replace the optimizer's own step, which would refuse this gradient."""
    return (
        type(optimizer) is optim.SGD
        and bool(group["fused"])
        and gradient.layout is torch.sparse_coo
        and gradient.sparse_dim() == 1
        and gradient.dense_dim() == 1
        and gradient.device.type == "cpu"
        and gradient.dtype in (torch.float32, torch.float64)
        and not (group["momentum"] or group["weight_decay"])
    )


@torch.no_grad()
def apply(parameter: torch.Tensor, gradient: torch.Tensor, group: Mapping[str, Any]) -> None:
    """Subtracts `lr` times the gradient, or adds it if the group maximizes.

    The parameter is a table (rows, features). The gradient has one sparse dimension and may be coalesced or not.
    """
    factor = float(group["lr"]) if group["maximize"] else -float(group["lr"])
    rows, values = gradient._indices()[0], gradient._values()
    # Several threads would share out each block, and wait for each other at its end.
    alone = torch.get_num_threads() == 1
    block = max(1, _BLOCK_BYTES // max(1, values[:1].nbytes)) if alone else max(1, len(rows))
    is_cold = alone and parameter.nbytes > _CACHED_BYTES and parameter.dtype is torch.float32
    for some_rows, some_values in zip(rows.split(block), values.split(block), strict=True):
        if is_cold:
            _fetch(parameter, some_rows)
        parameter.scatter_add_(0, some_rows.unsqueeze(1).expand_as(some_values), some_values.mul(factor))


def _fetch(table: torch.Tensor, rows: torch.Tensor) -> None:
    """Brings rows of a table into the caches of this core.

    Torch sums the rows of a bag with prefetching, and scatters without, so that it waits for the memory of each row.
    """
    torch.embedding_bag(table, rows, rows.new_zeros(1), mode=_SUM)
