"""Trains with owners and trainers, and measures the model meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

import torch

import trainer_client as tc
from examples.jobs import PATIENCE, Trainers, addresses_of_owners, arguments_of
from examples.recommender.auc import auc
from examples.recommender.clicks import Clicks
from examples.recommender.settings import Settings, Source
from examples.recommender.trainer import Recommender
from ps_service.launch.processes import Processes

MEASUREMENTS: Final = 10
"""How often the model is measured on the way."""

_PAUSE_SECONDS: Final = 0.05
_PART: Final = 4096
"""Held-out clicks that are predicted at once."""


class Counted(Protocol):
    """Settings that say how many processes there are."""

    @property
    def owners(self) -> int:
        """Owner processes."""

    @property
    def trainers(self) -> int:
        """Trainer processes."""


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
    program: str,
) -> AsyncIterator[tuple[Model, Moment]]:
    """Trains, and yields the model at about ten moments and at the end.

    Args:
        settings: How many owners and trainers there are, and what `attach` and the trainers get.
        steps: Steps of all trainers together.
        attach: Makes the model, or finds it.
        program: The module that a trainer runs, with the settings as arguments.

    Raises:
        PsError: An owner has failed.
        ProcessFailed: A process has ended early.
    """
    models = ("examples.recommender.model", "examples.recommender.ratings.model")
    async with Processes() as processes:
        addresses = await addresses_of_owners(processes, settings.owners, *models)
        async with tc.connect(*addresses, timeout=PATIENCE) as ps:
            model = await attach(ps, settings)
            losses = _Losses(settings.trainers, max(steps // MEASUREMENTS, 1))
            trainers = Trainers(
                processes, addresses, settings.trainers, [program, *arguments_of(settings)], losses.hear
            )
            due = losses.every
            while not trainers.have_finished():
                await asyncio.sleep(_PAUSE_SECONDS)
                if due <= losses.steps < steps:
                    yield model, losses.moment()
                    due = losses.steps - losses.steps % losses.every + losses.every
            yield model, losses.moment()


async def train(settings: Settings, source: Source) -> AsyncIterator[Point]:
    """Trains with clicks, and yields the model at about ten moments and at the end.

    Raises:
        PsError: An owner has failed.
        ProcessFailed: A process has ended early.
    """
    held_out = source.held_out()
    async with aclosing(
        watch(settings, source.steps, partial(Recommender.attach, trains=False), "examples.recommender.trainer")
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


class _Losses:
    """The losses that trainers have told.

    Args:
        trainers: How many there are.
        every: Of so many steps the mean is taken.
    """

    def __init__(self, trainers: int, every: int) -> None:
        self.every: Final = every
        self._told: list[list[float]] = [[] for _ in range(trainers)]
        self._began = 0.0

    @property
    def steps(self) -> int:
        """Steps that all have taken together."""
        return sum(map(len, self._told))

    def hear(self, rank: int, _: str, loss: float) -> None:
        """Notes a step of a trainer."""
        self._began = self._began or time.monotonic()
        self._told[rank].append(loss)

    def moment(self) -> Moment:
        """The training now."""
        seconds = time.monotonic() - self._began if self._began else 0.0
        latest = [loss for losses in self._told for loss in losses[-max(self.every // len(self._told), 1) :]]
        return Moment(self.steps, sum(latest) / len(latest) if latest else float("nan"), seconds)
