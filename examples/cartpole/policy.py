"""The policy of the agent."""

from __future__ import annotations

import torch
from torch import Tensor, nn

HIDDEN = 64


class Policy(nn.Module):
    """Two layers that map a state to a score for each of the two actions."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, HIDDEN)
        self.scores = nn.Linear(HIDDEN, 2)

    def forward(self, states: Tensor) -> Tensor:
        """``[..., 4]`` to ``[..., 2]``, float32: logarithms of the actions' probabilities."""
        return torch.log_softmax(self.scores(torch.relu(self.hidden(states))), dim=-1)
