"""Stands for an optimizer of the parameters of a replica, for `torch.amp.GradScaler`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class ScaledParameters:
    """The optimizer that a GradScaler gets. The scaler unscales `.grad` in place, and decides whether to step.

    Args:
        parameters: The parameters of the replica.

    Attributes:
        param_groups: One group of them.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters)}]

    def step(self) -> bool:
        """Called by the scaler if all gradients are finite."""
        return True

    def unscale(self, scaler: torch.amp.GradScaler) -> None:
        """Divides the gradients by the scale of the loss.

        Raises:
            RuntimeError: The scaler has unscaled them since its last update.
        """
        scaler.unscale_(self)  # type: ignore[arg-type]

    def are_finite(self, scaler: torch.amp.GradScaler) -> bool:
        """Whether the gradients may be applied. They are unscaled first, unless `unscale` has done that."""
        return bool(scaler.step(self))  # type: ignore[arg-type]
