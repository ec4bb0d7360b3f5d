"""Which sparse gradients torch's own optimizers accept, and a step with some that they do not.

Torch checks one parameter after the other, and raises at the first that it cannot step, when those before it have been
stepped already. The layouts of the gradient and of the state tell beforehand whether it would raise. So a step of these
optimizers needs no copy of the parameters for rollback. A test compares the rules with torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import optim

from ps_wire.limits import MIB

_TAKE_SPARSE: Final = (optim.SGD, optim.Adagrad, optim.SparseAdam)
_WHOLE: Final = (
    *(optim.SGD, optim.Adagrad, optim.SparseAdam, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adamax, optim.NAdam),
    *(optim.ASGD, optim.Adadelta, optim.RAdam, optim.Rprop),
)
"""The optimizers that do not raise halfway once every gradient has been checked."""

_BLOCK_BYTES: Final = 512 * 1024
"""Bytes of rows that are stepped at a time: they and their gradients stay in a core's cache."""

_CACHED_BYTES: Final = 16 * MIB
"""Tables up to this size are in the caches after the backward."""

_SUM: Final = 0
"""The mode of `torch.embedding_bag` that adds."""


def never_half_done(optimizer: optim.Optimizer) -> bool:
    """Whether a step cannot raise halfway once its gradients are checked. So it is with torch's own optimizers if
    `refusal` finds nothing, and with others that say so."""
    if type(optimizer) not in _WHOLE:
        return getattr(optimizer, "never_half_done", False)
    for group in optimizer.param_groups:
        rate = group["lr"]
        if group.get("differentiable") or (isinstance(rate, torch.Tensor) and rate.requires_grad):
            return False
    return True


def refusal(
    optimizer: optim.Optimizer, group: Mapping[str, Any], parameter: torch.Tensor, gradient: torch.Tensor
) -> str:
    """Why one of torch's own optimizers cannot apply a gradient, as the end of a sentence; empty if it can."""
    if not gradient.is_sparse:
        if isinstance(optimizer, optim.SparseAdam):
            return "takes sparse gradients only"
        return _mixture(optimizer, group, parameter, gradient) if group.get("momentum") else ""
    if not isinstance(optimizer, _TAKE_SPARSE):
        return "takes none; use SGD, Adagrad or SparseAdam, or make the embedding with sparse=False"
    if group.get("fused"):
        if can_step_rows(optimizer, group, gradient):
            return ""
        return "takes none with fused=True, except SGD without momentum and weight_decay for an embedding's rows"
    if group.get("weight_decay"):
        return "takes none with weight_decay"
    return _mixture(optimizer, group, parameter, gradient) if group.get("momentum") else ""


def compact(optimizer: optim.Optimizer, parameter: torch.Tensor) -> None:
    """Coalesces a sparse momentum, to which SGD appends the rows of every step."""
    momentum = optimizer.state.get(parameter, {}).get("momentum_buffer")
    if momentum is not None and momentum.is_sparse and momentum._nnz() > 2 * parameter.shape[0]:
        optimizer.state[parameter]["momentum_buffer"] = momentum.coalesce()


def _mixture(
    optimizer: optim.Optimizer, group: Mapping[str, Any], parameter: torch.Tensor, gradient: torch.Tensor
) -> str:
    """Why SGD cannot combine a gradient with its momentum; empty if it can, and for other optimizers."""
    held = optimizer.state.get(parameter, {}).get("momentum_buffer")
    if not isinstance(optimizer, optim.SGD) or held is None:
        return ""
    if held.is_sparse and not gradient.is_sparse:
        return "keeps a sparse momentum since earlier steps, to which a dense gradient cannot be added"
    if gradient.is_sparse and not held.is_sparse and group["nesterov"]:
        return "keeps a dense momentum since earlier steps, and takes none with nesterov=True"
    if held.is_sparse and held._nnz() and gradient._nnz() and held.sparse_dim() != gradient.sparse_dim():
        return "keeps a momentum with another number of sparse dimensions"
    return ""


def can_step_rows(optimizer: optim.Optimizer, group: Mapping[str, Any], gradient: torch.Tensor) -> bool:
    """Whether `step_rows` can replace the optimizer's own step, which would refuse this gradient."""
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
def step_rows(parameter: torch.Tensor, gradient: torch.Tensor, group: Mapping[str, Any]) -> None:
    """SGD with `fused=True` on a few rows of a large table (rows, features), which torch itself does not offer.

    `torch.optim.SGD` adds a sparse gradient with one BLAS call per row, and for the rows of an embedding the calls
    themselves take much of the time. Here one torch operation scatters the scaled rows. Duplicate rows are added in the
    same order. Products are rounded before they are added, so a result may differ in its last bit.
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
    """Brings rows of a table into the caches of this core. Torch sums the rows of a bag with prefetching, and scatters
    without, so that it waits for the memory of each row."""
    torch.embedding_bag(table, rows, rows.new_zeros(1), mode=_SUM)
