"""Trains with owners and trainers, and measures the model meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import torch

import trainer_client as tc
from examples.recommender.auc import auc
from examples.recommender.clicks import Clicks
from examples.recommender.processes import Processes, Trainers, start_owners
from examples.recommender.settings import Settings, Source
from examples.recommender.trainer import Recommender

MEASUREMENTS: Final = 10
"""How often the model is measured on the way."""

_PAUSE_SECONDS: Final = 0.05
_PART: Final = 4096
"""Held-out clicks that are predicted at once."""


@dataclass(frozen=True)
class Point:
    """The model at one moment of a training.

    Attributes:
        step: Steps that all trainers have taken together.
        auc: Of the held-out clicks.
        rows: Of each table.
        loss: The mean of the latest tenth of the steps; NaN before the first.
        seconds: Since the first step, without the measurements before.
    """

    step: int
    auc: float
    rows: list[int]
    loss: float
    seconds: float


async def train(settings: Settings, source: Source) -> AsyncIterator[Point]:
    """Trains, and yields the model at about ten moments and at the end.

    Raises:
        PsError: An owner has failed.
        EOFError: A process has ended early.
    """
    held_out = source.held_out()
    with Processes() as processes:
        addresses = await start_owners(processes, settings.owners)
        async with tc.connect(*addresses) as ps:
            model = await Recommender.attach(ps, settings)
            trainers = Trainers(processes, settings, addresses)
            every = max(source.steps // MEASUREMENTS, 1)
            began, due = None, every
            while not trainers.have_finished:
                await asyncio.sleep(_PAUSE_SECONDS)
                trainers.read()
                if began is None and trainers.steps:
                    began = time.monotonic()
                if due <= trainers.steps < source.steps:
                    yield await _measured(model, held_out, trainers, every, began)
                    due = trainers.steps - trainers.steps % every + every
            yield await _measured(model, held_out, trainers, every, began)


async def _measured(model: Recommender, held_out: Clicks, trainers: Trainers, every: int, began: float | None) -> Point:
    step, seconds = trainers.steps, time.monotonic() - (began or time.monotonic())
    await model.dense.pull()
    parts = zip(*(each.split(_PART) for each in held_out), strict=True)
    scores = torch.cat([await model.predict(Clicks(*part)) for part in parts])
    rows = await asyncio.gather(*(table.size() for table in model.tables))
    latest = [loss for losses in trainers.losses for loss in losses[-max(every // len(trainers.losses), 1) :]]
    loss = sum(latest) / len(latest) if latest else float("nan")
    return Point(step, auc(held_out.labels, scores), list(rows), loss, seconds)
