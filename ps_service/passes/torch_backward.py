"""The backward of torch, without the checks that an owner has made already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import GradientEdge, _engine_run_backward

if TYPE_CHECKING:
    from collections.abc import Sequence


def gradients_of(
    roots: Sequence[GradientEdge], targets: Sequence[torch.Tensor], seeds: Sequence[torch.Tensor], retain_graph: bool
) -> Sequence[torch.Tensor | None]:
    """Does what `torch.autograd.grad` does, for first derivatives and with unused targets allowed.

    That function looks at every argument once more before it calls torch's engine. For a small graph it takes longer
    to look than to compute.

    Args:
        roots: Where the backward begins.
        targets: The tensors whose gradients are wanted.
        seeds: The gradients of the roots, of their shapes and dtypes.
        retain_graph: Whether the graph may be used again.

    Returns:
        The gradient of each target; None for one that was not reached.

    Raises:
        RuntimeError: Torch's own, for instance when the graph was freed before, or if there are no targets.
    """
    if not targets:
        # To the engine this would mean all leaves of the graph.
        raise RuntimeError("there is nothing whose gradient could be wanted: no input and no parameter requires grad")
    found: Sequence[torch.Tensor | None] = _engine_run_backward(
        tuple(roots), tuple(seeds), retain_graph, False, tuple(targets), allow_unreachable=True, accumulate_grad=False
    )
    return found
