"""Runs the whole example, with report and picture; or one member of the group."""

from __future__ import annotations

import sys
from dataclasses import replace

from examples.cartpole import picture
from examples.cartpole.group import run_by_hand, run_together
from examples.cartpole.settings import parse
from examples.plan import Plan, shorter
from trainer_client import PsError

TAKES = "half a minute to two minutes, depending on the seed,"


def main(arguments: list[str] | None = None) -> int:
    """Runs the example and returns its exit code."""
    settings = parse(arguments)
    plan = Plan(TAKES, shorter(settings, "episodes"), settings.out)
    settings = replace(settings, out=plan.folder)
    settings.out.mkdir(parents=True, exist_ok=True)
    try:
        if not settings.rank:
            print(plan, flush=True)
        report = run_together(settings) if settings.rank is None else run_by_hand(settings)
    except (PsError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing is left running")
        return 130
    if report is not None:
        report.write(settings.out / "cartpole.json")
        picture.draw(settings.out / "cartpole.png", report)
        print(
            f"{report.episodes} episodes of {report.observers} observers, {report.steps} steps, {report.seconds:.1f} s"
        )
        print(f"figures in {settings.out / 'cartpole.json'}, picture in {settings.out / 'cartpole.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
