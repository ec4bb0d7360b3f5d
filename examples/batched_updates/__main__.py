"""Measures both ways of updating, and compares the batched one with training in one process."""

from __future__ import annotations

import statistics
import sys

from examples.batched_updates.measurement import WAYS, Round, measure
from examples.batched_updates.model import loss_of
from examples.batched_updates.reference import train_here
from examples.batched_updates.settings import Settings, parse
from examples.plan import Plan
from trainer_client import PsError

TOLERANCE = 1e-5
TAKES = "ten to thirty seconds"


def _say(way: str, rounds: list[Round], settings: Settings) -> float:
    """Prints the results of one way of updating, and returns its seconds."""
    seconds = statistics.median(each.seconds for each in rounds)
    gradients = settings.trainers * settings.steps
    updates = statistics.median(each.updates for each in rounds)
    loss = statistics.median(loss_of(each.parameters) for each in rounds)
    print(
        f"{way + ':':<12}{gradients} gradients, {updates:g} updates, {seconds:.2f} s, "
        f"{gradients / seconds:,.0f} gradients/s, loss {loss:.4f}"
    )
    return seconds


def main(arguments: list[str] | None = None) -> int:
    """Runs the example and returns its exit code: 1 if the batched updates differ from those of one process."""
    settings = parse(arguments)
    try:
        print(f"{settings.trainers} trainers, batches of {settings.batch_size}, medians of {settings.rounds} rounds")
        print(Plan(TAKES), flush=True)
        rounds = list(measure(settings))
    except PsError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing is left running")
        return 130
    batched, alone = (_say(way, [each for each in rounds if each.way == way], settings) for way in WAYS)
    print(f"batched takes {batched / alone:.2f} times as long, with one update in place of {settings.trainers}")
    expected = train_here(settings)
    largest = max(
        float((each.parameters[name] - expected[name]).abs().max())
        for each in rounds
        for name in expected
        if each.way == "batched"
    )
    print(
        f"batched updates differ by {largest:.1e} at most from one process "
        f"with batches of {settings.trainers * settings.batch_size}"
    )
    return 0 if largest <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
