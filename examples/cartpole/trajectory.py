"""What the agent remembers of one observer's episode."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Trajectory:
    """One episode: what was seen, what was done, what it brought."""

    states: list[Tensor] = field(default_factory=list)
    """``[4]`` float32 each."""
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    @property
    def total(self) -> float:
        """The episode's reward."""
        return sum(self.rewards)

    def returns(self, gamma: float, cut_short: bool) -> Tensor:
        """What each action was worth: the rewards after it, the later the less.

        Args:
            gamma: What a reward is worth one step earlier.
            cut_short: Whether the time limit ended the episode, and not the pole. The rewards then go on in theory: a
                reward of 1 in every step to come is worth ``1 / (1 - gamma)``. Without that, the last actions of a
                perfect episode would look like the worst.

        Returns:
            ``[N]`` float64, one for each action.
        """
        worth = 1 / (1 - gamma) if cut_short else 0.0
        backwards = []
        for reward in reversed(self.rewards):
            worth = reward + gamma * worth
            backwards.append(worth)
        return torch.tensor(backwards[::-1], dtype=torch.float64)
