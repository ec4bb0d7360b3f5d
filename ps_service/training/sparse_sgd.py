"""SGD with `fused=True` on a few rows of a large table, which torch itself does not offer.

`torch.optim.SGD` adds a sparse gradient with one BLAS call per row, and for the rows of an embedding the calls
themselves take much of the time. Its fused step refuses sparse gradients. Here one torch operation scatters the scaled
rows. Duplicate rows are added in the same order. Products are rounded before they are added, so a result may differ in
its last bit from the step without `fused`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import optim


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

    Args:
        parameter: A table (rows, features).
        gradient: A sparse gradient (rows, features) with one sparse dimension, coalesced or not.
        group: The parameter's group of the optimizer.
    """
    factor = float(group["lr"]) if group["maximize"] else -float(group["lr"])
    rows, values = gradient._indices()[0], gradient._values()
    parameter.scatter_add_(0, rows.unsqueeze(1).expand_as(values), values.mul(factor))
