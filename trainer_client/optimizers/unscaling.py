"""Divides the gradients of this process by the scale of a loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from trainer_client.contexts.context import Context


class Unscaled(NamedTuple):
    """The result of unscaling gradients.

    Attributes:
        present: Whether there were any gradients.
        non_finite: Whether one of them holds NaN or infinity.
    """

    present: bool
    non_finite: bool


def unscale_leaves(leaves: Iterable[torch.Tensor], context: Context, factor: float) -> Unscaled:
    """Multiplies the gradients that a pass has for leaves of this process.

    Raises:
        InvalidArgumentError: A gradient is float16, which a GradScaler refuses, too; nothing was changed.
    """
    found = [(each, gradient) for each in leaves if (gradient := context.gradient(each)) is not None]
    if any(gradient.dtype == torch.float16 for _, gradient in found):
        raise InvalidArgumentError("a GradScaler does not unscale float16 gradients: keep parameters in float32")
    non_finite = not all(is_finite(gradient) for _, gradient in found)
    context.scale([leaf for leaf, _ in found], factor)
    return Unscaled(bool(found), non_finite)


def is_finite(gradient: torch.Tensor) -> bool:
    """Whether a gradient, dense or sparse, holds neither NaN nor infinity."""
    values = gradient._values() if gradient.is_sparse else gradient
    return bool(torch.isfinite(values).all())
