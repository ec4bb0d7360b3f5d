"""Trains with owners and trainers, trains the same in one process, and compares the AUC of both."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import torch
from rich.console import Console

from examples.plan import Plan
from examples.recommender.auc import auc
from examples.recommender.criteo import CriteoError
from examples.recommender.planted import Planted
from examples.recommender.ratings.job import main as train_on_ratings
from examples.recommender.reference import Reference
from examples.recommender.report import Report, draw
from examples.recommender.settings import Settings, Source, is_short, parse, source_of
from examples.recommender.training import MEASUREMENTS, Point, train
from ps_service.launch.process import ProcessFailed
from trainer_client import PsError

TAKES = "two to four minutes"


def main(arguments: list[str] | None = None) -> int:
    """Runs the example and returns its exit code: 1 if the AUC, or HR@10, is lower than that of one process."""
    given = sys.argv[1:] if arguments is None else arguments
    if any(each.partition("=")[0] == "--ratings" for each in given):
        return train_on_ratings(given)
    settings, console = parse(given), Console()
    plan = Plan(f"{TAKES}, and one more the first time, when the owners compile,", is_short(settings), settings.out)
    settings = replace(settings, out=plan.folder)
    points: list[Point] = []
    try:
        source = source_of(settings)
        torch.set_num_threads(1)
        settings.out.mkdir(parents=True, exist_ok=True)
        _announce(settings, source, plan, console)
        asyncio.run(_train(settings, source, points, console))
        say(console, "now the same in this process, with torch.nn.Embedding")
        reference = _refer(settings, source, console)
    except (CriteoError, PsError, OSError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    except ProcessFailed as error:
        console.print(f"{error}; what it wrote is above", style="red", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        return 130
    report = _report(settings, source, points, reference)
    report.write(settings.out / "recommender.json")
    draw(report, settings.out / "recommender.png")
    _summary(report, settings, console)
    return 0 if report.auc >= reference[-1][1] - settings.tolerance else 1


def say(console: Console, text: str) -> None:
    """Prints a plain line."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _announce(settings: Settings, source: Source, plan: Plan, console: Console) -> None:
    say(
        console,
        f"{settings.owners} owners, {settings.trainers} trainers; together {source.steps} steps with "
        f"{settings.batch_size} {source.name} each",
    )
    say(console, str(plan))


async def _train(settings: Settings, source: Source, points: list[Point], console: Console) -> None:
    async for point in train(settings, source):
        points.append(point)
        say(
            console,
            f"step {point.step}/{source.steps} loss {point.loss:.4f} AUC {point.auc:.4f} "
            f"rows {sum(point.rows):,} {point.seconds:.1f} s",
        )


def _refer(settings: Settings, source: Source, console: Console) -> list[tuple[int, float]]:
    """The AUC of the training in one process, at the same moments."""
    reference, course = Reference(settings, source), []
    every = max(source.steps // MEASUREMENTS, 1)
    for step, loss in enumerate(reference.train(), 1):
        if step % every == 0 or step == source.steps:
            course.append((step, reference.score()))
            say(console, f"step {step}/{source.steps} loss {loss:.4f} AUC {course[-1][1]:.4f}")
    return course


def _report(settings: Settings, source: Source, points: list[Point], course: list[tuple[int, float]]) -> Report:
    best = auc(source.held_out().labels, source.best_scores()) if isinstance(source, Planted) else None
    seconds = max(points[-1].seconds, 1e-9)
    return Report(points[-1].auc, course, best, settings.batch_size, points[-1].step / seconds, points)


def _summary(report: Report, settings: Settings, console: Console) -> None:
    console.print(f"AUC       [bold green]{report.auc:.4f}[/]", highlight=False)
    say(console, f"torch     {report.reference[-1][1]:.4f} in one process")
    if report.best is not None:
        say(console, f"at most   {report.best:.4f} by the probabilities that the clicks were drawn with")
    clicks = report.steps_per_second * report.batch_size
    say(console, f"speed     {report.steps_per_second:.1f} steps/s, {clicks:,.0f} clicks/s")
    say(console, f"rows      {sum(report.points[-1].rows):,} in {len(report.points[-1].rows)} tables")
    say(console, f"figures   {settings.out / 'recommender.json'}")
    say(console, f"picture   {settings.out / 'recommender.png'}")


if __name__ == "__main__":
    sys.exit(main())
