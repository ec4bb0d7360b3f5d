"""Measures the training in both ways."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

import trainer_client as tc
from examples.batched_updates.group import group
from examples.batched_updates.server import BatchingServer, EagerServer
from examples.batched_updates.settings import Settings
from examples.batched_updates.trainer import run_trainer
from trainer_client import rpc

WAYS: dict[str, type[BatchingServer | EagerServer]] = {"batched": BatchingServer, "one by one": EagerServer}


@dataclass(frozen=True)
class Round:
    """The result of one training."""

    way: str
    """One of `WAYS`."""
    updates: int
    """Steps that the server made."""
    seconds: float
    parameters: dict[str, Tensor]
    """After the last step, by name."""


def measure(settings: Settings) -> Iterator[Round]:
    """Trains in both ways in turn, each time from the same initial parameters.

    Raises:
        PsError: A trainer failed, or did not join in time.
    """
    with group(settings.trainers) as trainers:
        for way in WAYS:
            # A warm-up, which opens connections and loads data.
            _train(way, replace(settings, steps=2), trainers)
        for _ in tc.progress(range(settings.rounds), description="rounds"):
            for way in WAYS:
                yield _train(way, settings, trainers)


def _train(way: str, settings: Settings, trainers: list[str]) -> Round:
    server = WAYS[way](settings)
    reference = rpc.RRef(server)
    began = time.perf_counter()
    futures = [
        rpc.rpc_async(name, run_trainer, args=(reference, rank, settings), timeout=0)
        for rank, name in enumerate(trainers)
    ]
    rpc.wait_all(futures)
    return Round(way, server.updates, time.perf_counter() - began, server.parameters())
