"""The agent, which starts episodes of observers, chooses their actions, and learns from their rewards."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import torch
from torch import Tensor

from examples.cartpole.observer import ENVIRONMENT, Observer
from examples.cartpole.policy import Policy
from examples.cartpole.settings import Settings
from examples.cartpole.trajectory import Trajectory
from ps_service import remote
from trainer_client import rpc


class Agent:
    """The agent of the tutorial.

    The calls of several observers run concurrently here, each on its own trajectory and with its own random numbers.
    The policy changes only between episodes. So a seed gives the same run every time.

    Args:
        settings: Seed, learning rate and gamma.
        names: The observers' names in the group.
    """

    def __init__(self, settings: Settings, names: Sequence[str]) -> None:
        torch.manual_seed(settings.seed)
        self.threshold = float(gymnasium.spec(ENVIRONMENT).reward_threshold or 0)
        self.running_reward = 0.0
        self._gamma = settings.gamma
        self._policy = Policy()
        self._optimizer = torch.optim.Adam(self._policy.parameters(), lr=settings.lr)
        self._reference = rpc.RRef(self)
        workers = [rpc.get_worker_info(name) for name in names]
        self._observers = [rpc.remote(worker, Observer, args=(settings.seed,)) for worker in workers]
        self._trajectories = {worker.id: Trajectory() for worker in workers}
        self._generators = {
            worker.id: torch.Generator().manual_seed(settings.seed * 1000 + worker.id) for worker in workers
        }

    @remote
    def select_action(self, observer: int, state: Tensor) -> int:
        """Chooses the action of an observer.

        Args:
            observer: Its number.
            state: ``[4]`` float32.

        Returns:
            0 or 1: push to the left or to the right.
        """
        # Without a graph: learning computes the probabilities again for whole episodes at once, which is far cheaper.
        with torch.no_grad():
            right = self._policy(state)[1].exp()
        action = int(torch.rand((), generator=self._generators[observer]) < right)
        trajectory = self._trajectories[observer]
        trajectory.states.append(state)
        trajectory.actions.append(action)
        return action

    @remote(inline=True)
    def report_reward(self, observer: int, reward: float) -> None:
        """Notes the reward of an observer's last action."""
        self._trajectories[observer].rewards.append(reward)

    def run_episode(self) -> list[float]:
        """Lets all observers play an episode concurrently, and trains the policy with them.

        Returns:
            The reward of each observer.

        Raises:
            PsError: An observer failed, or cannot be reached.
        """
        futures = [observer.rpc_async(timeout=0).run_episode(self._reference) for observer in self._observers]
        cut_short = rpc.wait_all(futures)
        trajectories = list(self._trajectories.values())
        self._learn(trajectories, cut_short)
        rewards = [trajectory.total for trajectory in trajectories]
        # As in the tutorial, the weakest observer counts.
        self.running_reward = 0.05 * min(rewards) + 0.95 * self.running_reward
        self._trajectories = {observer: Trajectory() for observer in self._trajectories}
        return rewards

    def _learn(self, trajectories: list[Trajectory], cut_short: list[bool]) -> None:
        """Takes one step of REINFORCE: actions with returns above the average become more likely."""
        returns = torch.cat([each.returns(self._gamma, cut) for each, cut in zip(trajectories, cut_short, strict=True)])
        advantages = (returns - returns.mean()) / (returns.std() + torch.finfo(torch.float32).eps)
        states = torch.stack([state for each in trajectories for state in each.states])
        actions = torch.tensor([action for each in trajectories for action in each.actions])
        chosen = self._policy(states).gather(1, actions[:, None]).squeeze(1)
        loss = -(chosen * advantages.float()).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
