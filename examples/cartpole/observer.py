"""An observer, which plays episodes for the agent and asks it for every action."""

from __future__ import annotations

import gymnasium
import torch

from ps_service import hosted, remote
from trainer_client import rpc

ENVIRONMENT = "CartPole-v1"


@hosted
class Observer:
    """An environment on a member of the group.

    Args:
        seed: Seed of the run; every observer derives its own.
    """

    def __init__(self, seed: int) -> None:
        self._id = rpc.get_worker_info().id
        self._environment = gymnasium.make(ENVIRONMENT)
        self._environment.reset(seed=seed * 1000 + self._id)

    @remote
    def run_episode(self, agent: rpc.RRef) -> bool:
        """Plays one episode.

        It makes two calls to the agent for every step, as in the tutorial; one would suffice.

        Args:
            agent: The agent, which gets every state and reward.

        Returns:
            Whether the time limit ended the episode. If not, the pole fell.
        """
        state, _ = self._environment.reset()
        while True:
            action = agent.rpc_sync().select_action(self._id, torch.from_numpy(state))
            state, reward, fallen, cut_short, _ = self._environment.step(action)
            agent.rpc_sync().report_reward(self._id, float(reward))
            if fallen or cut_short:
                return not fallen
