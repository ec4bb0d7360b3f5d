"""Runs torch's engine without the checks of `torch.autograd.backward` that are not needed for a plain loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import _engine_run_backward

from trainer_client.graph.missing_graph import ADVICE, is_of_a_missing_graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.autograd.graph import GradientEdge


def propagate(
    roots: Sequence[torch.Tensor],
    gradients: torch.Tensor | Sequence[torch.Tensor | None] | None,
    retain_graph: bool,
    ends: Sequence[GradientEdge] = (),
) -> None:
    """As `torch.autograd.backward`, without checks that take as long as the backward of a small loss.

    May end at nodes.
    """
    root = roots[0] if len(roots) == 1 and gradients is None else None
    if (
        # Torch would find nothing to refuse at it, and nothing to hand to other code.
        type(root) is torch.Tensor
        and root.requires_grad
        and root.numel() == 1
        and root.is_floating_point()
        and not torch._C._is_torch_function_mode_enabled()
        and not torch._C._are_functorch_transforms_active()
    ):
        seeds = (torch.ones_like(root),)
        _engine_run_backward(
            (root,), seeds, retain_graph, False, tuple(ends), allow_unreachable=True, accumulate_grad=True
        )
        return
    try:
        torch.autograd.backward(roots, gradients, retain_graph, inputs=ends or None)
    except RuntimeError as error:
        if not is_of_a_missing_graph(error) or all(root.requires_grad for root in roots):
            raise
        raise RuntimeError(f"{error}. {ADVICE}") from None


def propagate_from(edges: Sequence[GradientEdge], gradients: Sequence[torch.Tensor], retain_graph: bool) -> None:
    """Propagates gradients that an owner has sent, from edges of the graph on. Torch checks their shapes."""
    _engine_run_backward(
        tuple(edges), tuple(gradients), retain_graph, False, (), allow_unreachable=True, accumulate_grad=True
    )
