"""Calls torch's engine without the checks that an owner has made already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import GradientEdge, _engine_run_backward

if TYPE_CHECKING:
    from collections.abc import Sequence


def gradients_of(
    roots: Sequence[GradientEdge],
    targets: Sequence[torch.Tensor | GradientEdge],
    seeds: Sequence[torch.Tensor],
    retain_graph: bool,
) -> Sequence[torch.Tensor | None]:
    """Like `torch.autograd.grad`, for first derivatives and with unused targets allowed.

    That function checks every argument before it calls torch's engine. For a small graph the checks take longer than
    the computation.

    Args:
        roots: The edges at which the backward begins.
        targets: The tensors to compute gradients of, or their edges in the graph.
        seeds: The gradients of the roots, in their shapes and dtypes.
        retain_graph: Whether the graph is kept for another backward.

    Returns:
        The gradient of each target; None for one that was not reached.

    Raises:
        RuntimeError: Torch raised it, for instance because the graph was freed; or there are no targets.
    """
    if not targets:
        # Without targets the engine would accumulate at all leaves of the graph.
        raise RuntimeError("there is nothing whose gradient could be wanted: no input and no parameter requires grad")
    found: Sequence[torch.Tensor | None] = _engine_run_backward(
        tuple(roots), tuple(seeds), retain_graph, False, tuple(targets), allow_unreachable=True, accumulate_grad=False
    )
    return found
