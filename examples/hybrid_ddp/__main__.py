"""Runs the job, and compares it with the same job in one process."""

from __future__ import annotations

import sys
import time

from examples.hybrid_ddp.comparison import differences
from examples.hybrid_ddp.job import train
from examples.hybrid_ddp.reference import train_here
from examples.hybrid_ddp.settings import parse
from examples.plan import Plan
from trainer_client import PsError

TOLERANCE = 1e-6
TAKES = "ten to twenty seconds"


def main(arguments: list[str] | None = None) -> int:
    """Runs the example and returns its exit code: 1 if the parameters differ."""
    settings = parse(arguments)
    began = time.perf_counter()
    try:
        print(Plan(TAKES), flush=True)
        outcome = train(settings)
    except PsError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing is left running")
        return 130
    seconds = time.perf_counter() - began
    for rank, losses in enumerate(outcome.losses):
        last = losses[-10:]
        print(
            f"trainer{rank}: loss {losses[0]:.4f} at first, {sum(last) / len(last):.4f} in the last {len(last)} steps"
        )
    expected, _ = train_here(outcome.table_before, settings)
    found = differences(outcome, expected)
    for place, difference in found.items():
        print(f"{place}: differs by {difference:g} at most")
    largest = max(found.values())
    print(f"largest difference from one process after {settings.steps} steps: {largest:g} ({seconds:.1f} s)")
    return 0 if largest <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
