"""A trainer as a worker of Ray Train, and the actor that notes the steps of all."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import ray
import torch
from ray import train

import trainer_client as tc
from examples.jobs import PATIENCE
from examples.recommender.settings import Settings, source_of
from examples.recommender.trainer import Recommender

CLUSTER: Final = "recommender"
"""The name of the owners on Ray."""

NOTES: Final = "steps"
"""The name of the actor with the notes."""


class Notes:
    """When each step of all trainers was acknowledged, as seconds of the machine's clock."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def add(self, when: float) -> None:
        """Notes a step."""
        self._times.append(when)

    def times(self) -> list[float]:
        """All steps so far."""
        return self._times


def run(config: dict[str, Any]) -> None:
    """The loop of a worker. `config` has the settings of the training."""
    torch.set_num_threads(1)
    asyncio.run(_train(config["settings"], train.get_context().get_world_rank()))


async def _train(settings: Settings, rank: int) -> None:
    notes = ray.get_actor(NOTES)
    async with tc.connect(directory=f"ray:{CLUSTER}", timeout=PATIENCE, reconnect_timeout=PATIENCE) as ps:
        model = await Recommender.attach(ps, settings)
        for batch in source_of(settings).batches(rank, settings.trainers):
            await model.learn(batch)
            notes.add.remote(time.monotonic())
        await model.leave()
