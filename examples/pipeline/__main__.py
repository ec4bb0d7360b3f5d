"""Runs the whole example: two owners, the training, and the measurements."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace

import torch

from examples.pipeline import report
from examples.pipeline.measure import Machine, Measure, measure
from examples.pipeline.members import together
from examples.pipeline.pipeline import Pipeline
from examples.pipeline.settings import Settings, parse
from examples.pipeline.shards import Shard1, Shard2
from examples.plan import Plan, shorter
from trainer_client import PsError
from trainer_client.nn import RemoteModule

TAKES = "one to two minutes"


def run(settings: Settings) -> tuple[Machine, list[Measure]]:
    """Starts two owners, trains with them, and ends them.

    Raises:
        PsError: An owner did not join in time, or failed.
    """
    with together() as (one, two):
        first = RemoteModule(one, Shard1, (settings.width, settings.seed))
        second = RemoteModule(two, Shard2, (settings.width, settings.seed + 1))
        return measure(Pipeline(first, second, settings.lr), settings)


def main(arguments: list[str] | None = None) -> int:
    """Runs the example and returns its exit code."""
    settings = parse(arguments)
    plan = Plan(TAKES, shorter(settings, "rounds", "batch_size", "width"), settings.out)
    settings = replace(settings, out=plan.folder)
    # A signal to this process ends the others, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # The trainer has little to compute; the cores are for the owners.
    torch.set_num_threads(1)
    parts = f"{settings.micro_batches} micro-batches of {settings.batch_size // settings.micro_batches} digits"
    print(f"{parts} through two owners; medians of {settings.rounds} rounds")
    print(plan, flush=True)
    try:
        machine, measures = run(settings)
    except (PsError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing is left running")
        return 130
    report.write(settings.out / "pipeline.json", settings, machine, measures)
    print(report.table(measures))
    print(report.bound(machine, settings))
    losses = [loss for step in zip(*(each.losses for each in measures), strict=True) for loss in step]
    print(f"loss {losses[0]:.3f} in the first step, {losses[-1]:.3f} in the last of {len(losses)}")
    print(f"figures {settings.out / 'pipeline.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
