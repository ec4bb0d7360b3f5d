"""Compares the distributed model with a local one that takes the same steps."""

from __future__ import annotations

from torch import Tensor

from examples.word_language_model.distributed import DistributedSide
from examples.word_language_model.local import LocalSide
from examples.word_language_model.model import Hidden

TOLERANCE = 1e-6
"""Largest difference between the losses of a step."""

STEPS = 50
"""Number of steps that are compared. The norm of all gradients is summed in another order, and at a learning rate of
20 every step amplifies the difference in rounding, as it would between two local models."""


class CheckedSide:
    """The distributed model, with a local one that takes the first steps, too.

    Args:
        distributed: The model in two processes.
        local: The same in one.
        steps: Number of steps that are compared.

    Attributes:
        model: The distributed one.
        compared: Number of steps compared so far.
        difference: The largest difference so far between the losses of one step.
    """

    def __init__(self, distributed: DistributedSide, local: LocalSide, steps: int = STEPS) -> None:
        self.model = distributed.model
        self.compared = 0
        self.difference = 0.0
        self._steps = steps
        self._distributed = distributed
        self._local = local
        self._hidden: Hidden | None = None

    def step(self, data: Tensor, target: Tensor, hidden: Hidden) -> tuple[float, Hidden]:
        """Trains both on a piece of text, each with its own hidden state, and compares their losses."""
        loss, after = self._distributed.step(data, target, hidden)
        if self.compared < self._steps:
            self._compare(loss, data, target, begins=not hidden[0].any())
        return loss, after

    def set_lr(self, lr: float) -> None:
        """Sets the learning rate of both."""
        self._distributed.set_lr(lr)
        self._local.set_lr(lr)

    def _compare(self, loss: float, data: Tensor, target: Tensor, begins: bool) -> None:
        if begins or self._hidden is None:
            self._hidden = self._local.model.nothing_read(data.shape[1])
        expected, self._hidden = self._local.step(data, target, self._hidden)
        self.difference = max(self.difference, abs(loss - expected))
        self.compared += 1
