"""Trains with owners and trainers, and measures the tables meanwhile."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

import trainer_client as tc
from examples.jobs import PATIENCE, Trainers, addresses_of_owners, arguments_of
from examples.token_vectors import trainer
from examples.token_vectors.corpus import source_files
from examples.token_vectors.neighbours import Neighbours
from examples.token_vectors.settings import Settings
from examples.token_vectors.trainer import Vectors, agreed
from ps_service.launch.processes import Processes

FREQUENT: Final = 50
"""Identifiers that occur at least so often are compared."""

_PAUSE_SECONDS: Final = 0.05
_MEASUREMENTS: Final = 20


class Shows(Protocol):
    """Shows the progress of a part of the run."""

    def __call__(self, part: str, done: int, total: int, note: str = "") -> None:
        """Shows that `done` of about `total` are done."""


@dataclass
class Trained:
    """What a training has made.

    Attributes:
        tokens: Identifiers in the text.
        different: Different ones.
        losses: The mean of the losses of all trainers, one for each part of the training.
        steps: How many steps all had taken at these moments.
        rows: The rows of both tables at these moments.
        seconds: From the first step to the last.
        pairs_per_second: Of all trainers.
        neighbours: Compares the vectors of frequent identifiers.
    """

    tokens: int = 0
    different: int = 0
    losses: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    pairs_per_second: float = 0.0
    neighbours: Neighbours | None = None


async def train(settings: Settings, show: Shows) -> Trained:
    """Trains, and returns what it has made.

    Raises:
        OSError: There are no files, or they cannot be read.
        PsError: An owner has failed.
        ProcessFailed: A process has ended early.
    """
    files = len(source_files(settings.source))
    trained = Trained()
    async with Processes() as processes:
        addresses = await addresses_of_owners(processes, settings.owners)  # they host tables only
        async with tc.connect(*addresses, timeout=PATIENCE) as ps:
            vectors = await Vectors.attach(ps, settings)
            work, program = _Work(settings.trainers), ["examples.token_vectors.trainer", *arguments_of(settings)]
            trainers = Trainers(processes, addresses, settings.trainers, program, work.hear)
            agreeing = asyncio.ensure_future(agreed(ps, settings, {}))
            try:
                while not agreeing.done():
                    await _pause(trainers)
                    show("files", work.files, files)
                vocabulary = await agreeing
            finally:
                agreeing.cancel()
            await _watch(work, trainers, vectors, settings, trained, show)
            frequent = int(np.count_nonzero(vocabulary.counts >= FREQUENT))
            found = await vectors.of(vocabulary.ids[:frequent])
            trained.neighbours = Neighbours(vocabulary.tokens[:frequent], found)
    trained.tokens, trained.different = int(vocabulary.counts.sum()), len(vocabulary.ids)
    return trained


async def _watch(
    work: _Work, trainers: Trainers, vectors: Vectors, settings: Settings, trained: Trained, show: Shows
) -> None:
    """Waits until all have finished, and measures the tables about twenty times."""
    began, measured = None, 0
    while True:
        finished = trainers.have_finished()
        if began is None and work.losses:
            began = time.monotonic()
        due = max(work.planned // _MEASUREMENTS, 1) if work.planned else len(work.losses) + 1
        if len(work.losses) >= measured + due or (finished and len(work.losses) > measured):
            latest = work.losses[measured:]
            measured = len(work.losses)
            trained.steps.append(measured)
            trained.losses.append(sum(latest) / len(latest))
            trained.rows.append(await vectors.sizes())
            show("steps", measured, max(work.planned, measured), _note(trained))
        if finished:
            break
        await _pause(trainers)
    trained.seconds = time.monotonic() - (began or time.monotonic())
    trained.pairs_per_second = len(work.losses) * settings.batch_size / max(trained.seconds, 1e-9)


class _Work:
    """What trainers have told so far.

    Args:
        trainers: How many there are.

    Attributes:
        files: How many files they have read.
        planned: About how many steps they will take; 0 until all have said it.
        losses: Of all steps.
    """

    def __init__(self, trainers: int) -> None:
        self.files = 0
        self.losses: list[float] = []
        self._plans: list[int] = []
        self._trainers = trainers

    @property
    def planned(self) -> int:
        return sum(self._plans) if len(self._plans) == self._trainers else 0

    def hear(self, _: int, what: str, number: float) -> None:
        """Notes what a trainer has told."""
        match what:
            case trainer.READ:
                self.files += 1
            case trainer.PLANNED:
                self._plans.append(int(number))
            case trainer.LOSS:
                self.losses.append(number)


async def _pause(trainers: Trainers) -> None:
    """Waits for a moment. Raises `ProcessFailed` if a trainer has failed."""
    await asyncio.sleep(_PAUSE_SECONDS)
    trainers.have_finished()


def _note(trained: Trained) -> str:
    tokens, contexts = trained.rows[-1]
    return f"loss {trained.losses[-1]:.3f}, {tokens:,} + {contexts:,} rows"
