"""Trains with owners and trainers, and measures the model meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import torch

import trainer_client as tc
from examples.processes import PATIENCE, Counted, Processes, Trainers, start_owners
from examples.recommender import model as dlrm
from examples.recommender import trainer
from examples.recommender.auc import auc
from examples.recommender.clicks import Clicks
from examples.recommender.ratings import model as ncf
from examples.recommender.settings import Settings, Source
from examples.recommender.trainer import Recommender
from ps_service.hosting.allowlist import AllowList

MEASUREMENTS: Final = 10
"""How often the model is measured on the way."""

_PAUSE_SECONDS: Final = 0.05
_PART: Final = 4096
"""Held-out clicks that are predicted at once."""

Model = TypeVar("Model")
Chosen = TypeVar("Chosen", bound=Counted)


@dataclass(frozen=True)
class Moment:
    """A training at one moment.

    Attributes:
        step: Steps that all trainers have taken together.
        loss: The mean of the latest tenth of the steps; NaN before the first.
        seconds: Since the first step.
    """

    step: int
    loss: float
    seconds: float


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


async def watch(
    settings: Chosen,
    steps: int,
    attach: Callable[[tc.Client, Chosen], Awaitable[Model]],
    run: Callable[..., None],
) -> AsyncIterator[tuple[Model, Moment]]:
    """Trains, and yields the model at about ten moments and at the end.

    Args:
        settings: How many owners and trainers there are, and what `attach` and `run` get.
        steps: Steps of all trainers together.
        attach: Makes the model, or finds it.
        run: What a trainer runs, as for `Trainers`.

    Raises:
        PsError: An owner has failed.
        EOFError: A process has ended early.
    """
    with Processes() as processes:
        addresses = await start_owners(processes, settings.owners, _allowed)
        async with tc.connect(*addresses, timeout=PATIENCE) as ps:
            model = await attach(ps, settings)
            trainers = Trainers(processes, run, settings, addresses)
            every = max(steps // MEASUREMENTS, 1)
            began, due = None, every
            while not trainers.have_finished:
                await asyncio.sleep(_PAUSE_SECONDS)
                trainers.read()
                if began is None and trainers.steps:
                    began = time.monotonic()
                if due <= trainers.steps < steps:
                    yield model, _moment(trainers, every, began)
                    due = trainers.steps - trainers.steps % every + every
            yield model, _moment(trainers, every, began)


async def train(settings: Settings, source: Source) -> AsyncIterator[Point]:
    """Trains with clicks, and yields the model at about ten moments and at the end.

    Raises:
        PsError: An owner has failed.
        EOFError: A process has ended early.
    """
    held_out = source.held_out()
    async with aclosing(
        watch(settings, source.steps, partial(Recommender.attach, trains=False), trainer.run)
    ) as watched:
        async for model, moment in watched:
            found = await score(model, held_out)
            rows = await asyncio.gather(*(table.size() for table in model.tables))
            yield Point(moment.step, found, list(rows), moment.loss, moment.seconds)


async def score(model: Recommender, held_out: Clicks) -> float:
    """The AUC of the model as the owners have it now."""
    await model.dense.pull()
    parts = zip(*(each.split(_PART) for each in held_out), strict=True)
    return auc(held_out.labels, torch.cat([await model.predict(Clicks(*part)) for part in parts]))


def _allowed() -> AllowList:
    """What owners host."""
    return AllowList([dlrm, ncf])


def _moment(trainers: Trainers, every: int, began: float | None) -> Moment:
    seconds = time.monotonic() - (began or time.monotonic())
    latest = [loss for losses in trainers.losses for loss in losses[-max(every // len(trainers.losses), 1) :]]
    return Moment(trainers.steps, sum(latest) / len(latest) if latest else float("nan"), seconds)
