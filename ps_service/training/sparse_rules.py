"""Rules for the gradient layouts that torch's own optimizers accept, checked before a step changes anything.

Torch checks one parameter after the other, and raises at the first that it cannot step, when those before it have been
stepped already. The layouts of the gradient and of the state tell beforehand whether it would raise. So a step of these
optimizers needs no copy of the parameters for rollback. A test compares the rules with torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import optim

from ps_service.training import sparse_sgd

_TAKE_SPARSE: Final = (optim.SGD, optim.Adagrad, optim.SparseAdam)
_WHOLE: Final = (
    *(optim.SGD, optim.Adagrad, optim.SparseAdam, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adamax, optim.NAdam),
    *(optim.ASGD, optim.Adadelta, optim.RAdam, optim.Rprop),
)
"""The optimizers that do not raise halfway once every gradient has been checked."""


def never_half_done(optimizer: optim.Optimizer) -> bool:
    """Whether a step cannot raise halfway once its gradients are checked.

    So it is with torch's own optimizers if `refusal` finds nothing, and with others that say so.
    """
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
        if sparse_sgd.can_apply(optimizer, group, gradient):
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
