"""Measures the same training with different numbers of micro-batches in flight."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

import trainer_client as tc
from examples.digits.data import batches, load_small
from examples.pipeline.pipeline import Pipeline
from examples.pipeline.settings import Settings


@dataclass
class Measure:
    """The times and losses of the steps with one number in flight.

    Attributes:
        in_flight: Micro-batches in flight at once.
        forward_ms: Milliseconds of each forward without a step, in evaluation.
        step_ms: Milliseconds of each step: forward, backward and optimizer.
        losses: The loss of each step.
    """

    in_flight: int
    forward_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def take(self, pipeline: Pipeline, x: Tensor, y: Tensor, micro_batches: int) -> None:
        """Measures one forward and one step."""
        began = time.perf_counter()
        with torch.no_grad():
            pipeline.forward(x.chunk(micro_batches), self.in_flight)
        between = time.perf_counter()
        self.losses.append(pipeline.step(x, y, micro_batches, self.in_flight))
        self.forward_ms.append((between - began) * 1e3)
        self.step_ms.append((time.perf_counter() - between) * 1e3)

    @property
    def forward(self) -> float:
        """The median forward, in milliseconds."""
        return median(self.forward_ms)

    @property
    def step(self) -> float:
        """The median step, in milliseconds."""
        return median(self.step_ms)


@dataclass
class Machine:
    """How much more two processes at once compute than one: 2 on two idle cores, less with hyper-threads or other load.

    Attributes:
        apart_ms: Milliseconds of a micro-batch in both halves, one after the other, in each round.
        at_once_ms: The same at once.
    """

    apart_ms: list[float] = field(default_factory=list)
    at_once_ms: list[float] = field(default_factory=list)

    def take(self, pipeline: Pipeline, micro_batch: Tensor) -> None:
        """Measures both."""
        apart, at_once = pipeline.halves(micro_batch)
        self.apart_ms.append(apart * 1e3)
        self.at_once_ms.append(at_once * 1e3)

    @property
    def speed_up(self) -> float:
        """The ratio of the medians."""
        return median(self.apart_ms) / median(self.at_once_ms)

    def bound(self, micro_batches: int) -> float:
        """The most that a pipeline of two equal halves can gain here: each half is idle for one micro-batch."""
        return micro_batches / (1 + (micro_batches - 1) / self.speed_up)


def measure(pipeline: Pipeline, settings: Settings) -> tuple[Machine, list[Measure]]:
    """Trains, one step with each number in flight in turn, so that other load on the machine affects all of them.

    Args:
        pipeline: The network.
        settings: What to measure.

    Returns:
        What the machine can do, and a measure for each number in flight. The first round, a warm-up, does not count.
    """
    dealt = deal(settings.batch_size, settings.seed)
    warm_up, measures = ([Measure(number) for number in settings.in_flight] for _ in range(2))
    idle, machine = Machine(), Machine()
    rounds = (warm_up, *[measures] * settings.rounds)
    for number, measuring in enumerate(tc.progress(rounds, description="rounds, with one to warm up")):
        (machine if number else idle).take(pipeline, next(dealt)[0].chunk(settings.micro_batches)[0])
        for each in measuring:
            each.take(pipeline, *next(dealt), settings.micro_batches)
    return machine, measures


def deal(size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields batches of digits without end, all of the same size.

    Yields:
        Images ``[size, 1, 28, 28]`` float32 and labels ``[size]`` int64.
    """
    part = load_small().train
    while True:
        for x, y in batches(part, size, epochs=1, seed=seed):
            if len(y) == size:
                yield x, y
        seed += 1
