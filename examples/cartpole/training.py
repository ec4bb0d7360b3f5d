"""Trains the agent, episode after episode, until the task is solved."""

from __future__ import annotations

import time
from collections.abc import Sequence

from examples.cartpole.agent import Agent
from examples.cartpole.report import Report
from examples.cartpole.settings import Settings

EVERY = 10


def train(settings: Settings, names: Sequence[str]) -> Report:
    """Plays and learns until the running reward is over the environment's threshold, and prints the progress.

    Args:
        settings: The settings of the run.
        names: The observers' names in the group, which this process has joined.

    Raises:
        PsError: An observer failed, or cannot be reached.
    """
    agent = Agent(settings, names)
    print(f"This will run until the running reward is over {agent.threshold}. Ctrl-C ends it.", flush=True)
    rewards: list[list[float]] = []
    running: list[float] = []
    began = time.perf_counter()
    while len(rewards) < settings.episodes and agent.running_reward <= agent.threshold:
        rewards.append(agent.run_episode())
        running.append(agent.running_reward)
        if len(rewards) % EVERY == 0:
            last = min(rewards[-1])
            print(
                f"Episode {len(rewards)}\tLast reward: {last:.2f}\tAverage reward: {agent.running_reward:.2f}",
                flush=True,
            )
    seconds = time.perf_counter() - began
    solved = agent.running_reward > agent.threshold
    print(f"{'Solved!' if solved else 'Not solved.'} Running reward is now {agent.running_reward:.2f}.", flush=True)
    return Report(
        solved=solved,
        threshold=agent.threshold,
        episodes=len(rewards),
        observers=len(names),
        seed=settings.seed,
        # Every step has a reward of 1, also the last one.
        steps=int(sum(map(sum, rewards))),
        seconds=seconds,
        rewards=rewards,
        running=running,
    )
