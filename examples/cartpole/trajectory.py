"""One observer's episode, as the agent keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Trajectory:
    """One episode: states, actions and rewards."""

    states: list[Tensor] = field(default_factory=list)
    """``[4]`` float32 each."""
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    @property
    def total(self) -> float:
        """The episode's reward."""
        return sum(self.rewards)

    def returns(self, gamma: float, cut_short: bool) -> Tensor:
        """The return of each action: the sum of the discounted rewards after it.

        Args:
            gamma: Discount of rewards per step.
            cut_short: Whether the time limit ended the episode, and not the pole. Then a reward of 1 is assumed for
                every later step, which is worth ``1 / (1 - gamma)``. Otherwise the last actions of a perfect episode
                would have the lowest returns.

        Returns:
            ``[N]`` float64, one for each action.
        """
        worth = 1 / (1 - gamma) if cut_short else 0.0
        backwards = []
        for reward in reversed(self.rewards):
            worth = reward + gamma * worth
            backwards.append(worth)
        return torch.tensor(backwards[::-1], dtype=torch.float64)
